"""
Tasks whose problems stand in a list: in a file (jsonl, json, csv, parquet), or in a Python file of the user's. One line
of GSM8K's train.jsonl, and a completion that is right with ``answer_in='####'`` and ``check='number'``:

    {"question": "Natalia sold clips to 48 of her friends ...", "answer": "... she sold 48+24 = 72 clips.\n#### 72"}
    48 / 2 = 24 in May, 48 + 24 = 72.\n#### 72
"""
import copy
import csv
import json
import os
import runpy
import random
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from dizoo_llm.rewards import CHECKS, EXTRACTORS, WRITTEN
from ding_common import ConfigError, Rule, nearest

from .base import TASK_REGISTRY, Problem, Task, is_prompt


class ListTask(Task):
    """
    Overview:
        A task over a list of problems, of which some may be held out for evaluation: a list of their own, or a number \
        of them drawn by a seed. A problem whose text is, but for white space, among the held-out ones is never in \
        training.
    Interfaces:
        As ``Task``.
    """

    def __init__(self, problems: Sequence[Problem], held_out: Optional[Sequence[Problem]], eval_size: int, seed: int):
        """
        Overview:
            Divide the problems.
        Arguments:
            - problems (:obj:`Sequence[Problem]`): All, or those for training.
            - held_out (:obj:`Optional[Sequence[Problem]]`): Those for evaluation; None draws ``eval_size`` of \
                ``problems``.
            - eval_size (:obj:`int`): At most so many for evaluation, each text once; 0 takes all of ``held_out``, or \
                without that evaluates on the problems of training.
            - seed (:obj:`int`): Which are drawn.
        """
        for key, value in (('eval_size', eval_size), ('seed', seed)):
            if not Rule.integer(0).holds(value):
                raise ConfigError(f'env.task.{key} = {value!r}: must be {Rule.integer(0).allowed}.')
        by_text: Dict[str, Problem] = {}
        for problem in problems if held_out is None else held_out:
            by_text.setdefault(_words(problem), problem)
        texts = list(by_text)
        if held_out is None and eval_size > 0:
            random.Random(seed).shuffle(texts)
        if eval_size > 0 or held_out is None:
            texts = texts[:eval_size]
        self._held_out = [by_text[text] for text in texts]
        found = set(texts)
        self._problems = [problem for problem in problems if _words(problem) not in found]
        if held_out is None and eval_size == 0:
            self._held_out = self._problems

    def __len__(self) -> int:
        return len(self._problems)

    def problem(self, index: int) -> Problem:
        return self._problems[index]

    def evaluation(self) -> Task:
        other = copy.copy(self)
        other._problems = self._held_out
        return other


@TASK_REGISTRY.register('file')
class FileTask(ListTask):
    """
    Overview:
        Problems of a file with a column of prompts and one of answers; one part, ``right``.
    """

    weights = dict(right=1.0)

    def __init__(
            self,
            path: str,
            eval_path: Optional[str] = None,
            eval_size: int = 0,
            seed: int = 0,
            prompt: str = 'question',
            answer: str = 'answer',
            kind: Optional[str] = None,
            template: str = '{prompt}',
            reference_in: str = 'whole',
            answer_in: str = 'whole',
            check: str = 'exact',
    ) -> None:
        """
        Overview:
            Read the files.
        Arguments:
            - path (:obj:`str`): ``.jsonl``, ``.json`` (a list), ``.csv`` or ``.parquet`` (extra ``parquet``).
            - eval_path (:obj:`Optional[str]`): The same for evaluation; None holds out ``eval_size`` problems of \
                ``path``.
            - eval_size (:obj:`int`): At most so many problems for evaluation; 0 takes all of ``eval_path``.
            - seed (:obj:`int`): Which problems are held out.
            - prompt (:obj:`str`): Column of the prompts, text or lists of chat messages.
            - answer (:obj:`str`): Column of the reference answers.
            - kind (:obj:`Optional[str]`): Column by which evaluation counts.
            - template (:obj:`str`): What the policy is asked; ``{prompt}`` is replaced. Of a chat it is not used.
            - reference_in (:obj:`str`): Where in that column the answer stands, one of ``EXTRACTORS``; '####' for \
                GSM8K.
            - answer_in (:obj:`str`): Where in a completion it stands: 'whole', 'answer_tag', 'boxed' or '####'.
            - check (:obj:`str`): 'exact', 'number', or 'math_verify' (extra ``math``).
        Raises:
            - ConfigError: If a file cannot be read, or lacks what is asked of it.
        """
        _one_of('answer_in', answer_in, EXTRACTORS)
        _one_of('reference_in', reference_in, EXTRACTORS)
        _one_of('check', check, CHECKS)
        if '{prompt}' not in template:
            raise ConfigError(f'env.task.template = {template!r}: must hold {{prompt}}.')
        self._answer_in, self._check, self._written = EXTRACTORS[answer_in], CHECKS[check], WRITTEN[answer_in]
        self._shown = reference_in == answer_in

        def read(key: str, file: str) -> List[Problem]:
            problems = []
            for number, row in enumerate(_rows(key, file)):
                where = f'env.task.{key} = {file!r}: row {number + 1}'
                for name, column in (('prompt', prompt), ('answer', answer), ('kind', kind)):
                    if column is not None and column not in row:
                        raise ConfigError(
                            f"{where} has no {column!r} (env.task.{name}); it has {', '.join(map(str, row))}."
                        )
                    if column is not None and row[column] is None:
                        raise ConfigError(f'{where} has nothing in {column!r} (env.task.{name}).')
                reference = EXTRACTORS[reference_in](str(row[answer]))
                if reference is None:
                    raise ConfigError(
                        f'{where}: no answer by env.task.reference_in = {reference_in!r} in {row[answer]!r}'
                    )
                try:
                    same = self._check(reference, reference)
                except ImportError as error:
                    raise ConfigError(str(error)) from error
                if not same:
                    raise ConfigError(
                        f'{where}: the answer {reference!r} is not right by env.task.check = {check!r} itself; '
                        f'env.task.reference_in = {reference_in!r} says where in the column it stands.'
                    )
                text = row[prompt] if isinstance(row[prompt], list) else template.replace('{prompt}', str(row[prompt]))
                if not is_prompt(text):
                    raise ConfigError(f'{where}: {text!r:.80} is neither text nor messages with role and content.')
                metadata = {} if kind is None else dict(kind=str(row[kind]))
                problems.append(Problem(text, reference, dict(metadata, solution=str(row[answer]))))
            return problems

        held_out = None if eval_path is None else read('eval_path', eval_path)
        super().__init__(read('path', path), held_out, eval_size, seed)

    def score(self, problem: Problem, completion: str) -> Dict[str, Optional[float]]:
        given = self._answer_in(completion)
        return dict(right=0.0 if given is None else self._check(given, problem.answer))

    def demonstration(self, problem: Problem) -> str:
        return problem.metadata['solution'] if self._shown else self._written.format(problem.answer)


@TASK_REGISTRY.register('python')
class PythonTask(ListTask):
    """
    Overview:
        Problems and scores from a Python file of the user's, which is run: ``problems()`` gives a list of problems, \
        each a dict with ``prompt`` and ``answer`` and whatever else; ``score(problem, completion)`` gets such a dict \
        and a text, and gives a number or a dict of named numbers, whose weights the file may name in ``weights``.
    """

    def __init__(self, file: str, eval_size: int = 0, seed: int = 0) -> None:
        """
        Overview:
            Run the file.
        Arguments:
            - file (:obj:`str`): Its path.
            - eval_size (:obj:`int`): How many problems are held out for evaluation; 0 evaluates on those of training.
            - seed (:obj:`int`): Which ones.
        Raises:
            - ConfigError: If there is no such file, or it lacks a function.
        """
        if not os.path.isfile(file):
            raise ConfigError(f'env.task.file = {file!r}: there is no such file.')
        names = runpy.run_path(file)
        for name in ('problems', 'score'):
            if not callable(names.get(name)):
                raise ConfigError(f'env.task.file = {file!r}: must define a function {name}.')
        self._score: Callable[[Dict, str], Any] = names['score']
        self.weights = dict(names.get('weights', dict(score=1.0)))
        self.words, self.chars = names.get('words'), names.get('chars')
        problems = []
        for number, row in enumerate(names['problems']()):
            if not isinstance(row, dict) or 'prompt' not in row:
                raise ConfigError(
                    f'env.task.file = {file!r}: problem {number} is {row!r}, must be a dict with a prompt.'
                )
            if not is_prompt(row['prompt']):
                raise ConfigError(
                    f"env.task.file = {file!r}: problem {number} has the prompt {row['prompt']!r:.80}, must be text or "
                    'messages with role and content.'
                )
            problems.append(Problem(row['prompt'], str(row.get('answer', '')), row))
        super().__init__(problems, None, eval_size, seed)

    def score(self, problem: Problem, completion: str) -> Dict[str, Optional[float]]:
        scored = self._score(problem.metadata, completion)
        return scored if isinstance(scored, dict) else {next(iter(self.weights)): scored}


def _words(problem: Problem) -> str:
    return ' '.join(problem.text.split())


def _one_of(key: str, value: str, allowed: Dict) -> None:
    if value not in allowed:
        raise ConfigError(f'env.task.{key} = {value!r}: {nearest(str(value), allowed)}')


def _rows(key: str, path: str) -> Iterator[Dict[str, Any]]:
    readers = {'.jsonl': _jsonl, '.json': _json, '.csv': _csv, '.parquet': _parquet}
    ending = os.path.splitext(path)[1]
    if ending not in readers:
        raise ConfigError(f"env.task.{key} = {path!r}: must end in {', '.join(readers)}.")
    if not os.path.isfile(path):
        raise ConfigError(f'env.task.{key} = {path!r}: there is no such file.')
    try:
        rows = list(readers[ending](path))
    except (ValueError, ImportError, OSError, csv.Error) as error:  # broken JSON and wrong encodings are ValueErrors
        raise ConfigError(f'env.task.{key} = {path!r}: {error}') from error
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ConfigError(
                f'env.task.{key} = {path!r}: row {number + 1} is no object with named fields: {row!r:.80}'
            )
    return iter(rows)


def _jsonl(path: str) -> Iterator[Any]:
    with open(path, encoding='utf-8') as f:
        for number, line in enumerate(f):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise ValueError(f'line {number + 1} is no JSON ({error})') from error


def _json(path: str) -> Sequence[Any]:
    with open(path, encoding='utf-8') as f:
        rows = json.load(f)
    if not isinstance(rows, list):
        raise ValueError('must hold a list')
    return rows


def _csv(path: str) -> List[Dict[str, str]]:
    with open(path, encoding='utf-8-sig', newline='') as f:  # spreadsheets put a mark before the first column
        return list(csv.DictReader(f))


def _parquet(path: str) -> List[Dict[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise ImportError("reading parquet needs the extra: pip install 'ding-grpo[parquet]'") from error
    try:
        return parquet.read_table(path).to_pylist()
    except ArrowException as error:
        raise ValueError(str(error)) from error
