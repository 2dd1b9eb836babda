"""
Tasks whose problems stand in a list: in a file (jsonl, json, csv, parquet), or in a Python file of the user's. One line
of GSM8K's train.jsonl, and a completion that is right with ``answer_in='####'`` and ``check='number'``:

    {"question": "Natalia sold clips to 48 of her friends ...", "answer": "... she sold 48+24 = 72 clips.\n#### 72"}
    48 / 2 = 24 in May, 48 + 24 = 72.\n#### 72
"""
import copy
import csv
import io
import json
import math
import os
import random
import re
import warnings
from typing import Any, Callable, Dict, Iterable, Iterator, List, NoReturn, Optional, Sequence, Tuple

from dizoo_llm.rewards import CHECKS, EXTRACTORS, WRITTEN
from ding_common import ConfigError, Rule, check_is_file, check_links, describe, nearest, run_file

from .base import TASK_REGISTRY, Problem, Task, is_prompt

_HALF = re.compile('[\ud800-\udfff]')  # JSON can write a surrogate alone, at which tokenizers and files fail later


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
        self._columns = dict(prompt=prompt, answer=answer, kind=kind)
        self._template, self._reference_in, self._check_name = template, reference_in, check
        held_out = None if eval_path is None else self._read('eval_path', eval_path)
        super().__init__(self._read('path', path), held_out, eval_size, seed)

    def _read(self, key: str, file: str) -> List[Problem]:
        """The problems of a file, which the config's ``key`` names."""
        problems, contradicting = [], []
        first: Dict[str, Tuple[str, str]] = {}  # by text, the first answer and its place
        for place, row in _rows(key, file):
            where = f'env.task.{key} = {file!r}: {place}'
            self._check_columns(where, row)
            problem = self._problem(where, row)
            before, there = first.setdefault(_words(problem), (problem.answer, place))
            if problem.answer != before and not self._check(problem.answer, before):
                contradicting.append(f'{place} after {there}: {problem.answer!r:.80}, not {before!r:.80}')
            problems.append(problem)
        if contradicting:  # noise to the learner, and usual in large collections
            warnings.warn(
                f'env.task.{key} = {file!r}: {len(contradicting)} times a question comes again with another answer, '
                f'as {contradicting[0]}.'
            )
        return problems

    def _check_columns(self, where: str, row: Dict[str, Any]) -> None:
        for name, column in self._columns.items():
            if column is None:
                continue
            if column not in row:
                raise ConfigError(
                    f"{where} has no {column!r} (env.task.{name}); it has {', '.join(map(str, row)):.200}."
                )
            if row[column] is None:
                raise ConfigError(f'{where} has nothing in {column!r} (env.task.{name}).')
            if not _is_text(row[column]) and not (name == 'prompt' and isinstance(row[column], list)):
                raise ConfigError(
                    f'{where} has {row[column]!r:.80} in {column!r} (env.task.{name}); must be text or a number.'
                )

    def _problem(self, where: str, row: Dict[str, Any]) -> Problem:
        prompt, answer, kind = (
            self._columns[name] and row[self._columns[name]] for name in ('prompt', 'answer', 'kind')
        )
        reference = EXTRACTORS[self._reference_in](str(answer))
        if reference is None:
            raise ConfigError(
                f'{where}: no answer by env.task.reference_in = {self._reference_in!r} in {answer!r:.200}'
            )
        try:
            same = self._check(reference, reference)
        except ImportError as error:
            raise ConfigError(str(error)) from error
        if not same:
            raise ConfigError(
                f'{where}: the answer {reference!r:.200} is not right by env.task.check = {self._check_name!r} itself; '
                f'env.task.reference_in = {self._reference_in!r} says where in the column it stands.'
            )
        text = prompt if isinstance(prompt, list) else self._template.replace('{prompt}', str(prompt))
        if not is_prompt(text) or not _is_text(Problem(text).text):
            raise ConfigError(f'{where}: {text!r:.80} is neither text nor messages with role and content.')
        metadata = {} if self._columns['kind'] is None else dict(kind=str(kind))
        return Problem(text, reference, dict(metadata, solution=str(answer)))

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
            - ConfigError: If there is no such file, it cannot be run, or lacks a function.
        """
        names = run_file(file, 'env.task.file')
        for name in ('problems', 'score'):
            if not callable(names.get(name)):
                raise ConfigError(f'env.task.file = {file!r}: must define a function {name}.')
        self._score: Callable[[Dict, str], Any] = names['score']
        self.weights = names.get('weights', dict(score=1.0))
        number = Rule.number()
        if not isinstance(self.weights, dict) or not self.weights or not all(map(number.holds, self.weights.values())):
            raise ConfigError(
                f'env.task.file = {file!r}: weights = {self.weights!r:.200}, must be a dict of names and numbers.'
            )
        self.words, self.chars = names.get('words'), names.get('chars')
        try:
            rows = list(names['problems']())
        except (Exception, SystemExit) as error:  # a user's function may raise anything
            raise ConfigError(f'env.task.file = {file!r}: problems() raised {describe(error)}') from error
        problems = []
        for number, row in enumerate(rows):
            if not isinstance(row, dict) or 'prompt' not in row:
                raise ConfigError(
                    f'env.task.file = {file!r}: problem {number} is {row!r:.200}, must be a dict with a prompt.'
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


def _is_text(value: Any) -> bool:
    """Whether it may stand for a text: no collection, no number for a missing one, no half of a character."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return _HALF.search(value) is None
    return not isinstance(value, (dict, list, bytes))


def _rows(key: str, path: str) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """The rows of a file, each with where it stands."""
    where = f'env.task.{key} = {path!r}'
    readers = {'.jsonl': _jsonl, '.json': _json, '.csv': _csv, '.parquet': _parquet}
    ending = os.path.splitext(path)[1]
    if ending not in readers:
        raise ConfigError(f"{where}: must end in {', '.join(readers)}.")
    check_is_file(path, f'env.task.{key}')
    check_links(path, f'env.task.{key}')
    try:
        rows = list(readers[ending](path))
    except (ValueError, ImportError, OSError) as error:
        raise ConfigError(f'{where}: {error}') from error
    for place, row in rows:
        if not isinstance(row, dict):
            raise ConfigError(f'{where}: {place} is no object with named fields: {row!r:.80}')
    return iter(rows)


def _jsonl(path: str) -> Iterator[Tuple[str, Any]]:
    for number, line in enumerate(io.StringIO(_text(path), newline=None), 1):
        if line.strip():
            yield f'line {number}', _parse(line, f'line {number} is no JSON')


def _json(path: str) -> Iterator[Tuple[str, Any]]:
    rows = _parse(_text(path), 'is no JSON')
    if not isinstance(rows, list):
        raise ValueError('must hold a list')
    yield from _numbered(rows)


def _csv(path: str) -> Iterator[Tuple[str, Dict[str, str]]]:
    reader = csv.DictReader(io.StringIO(_text(path), newline=''), strict=True)
    try:
        for place, row in _numbered(reader):
            if None in row:
                raise ValueError(f'{place} has more fields than the header')
            yield place, row
    except csv.Error as error:
        raise ValueError(f'what begins in line {reader.line_num + 1} is no CSV ({error})') from error


def _parquet(path: str) -> Iterator[Tuple[str, Dict[str, Any]]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise ImportError("reading parquet needs the extra: pip install 'ding-grpo[parquet]'") from error
    try:
        yield from _numbered(parquet.read_table(path).to_pylist())
    except ArrowException as error:
        raise ValueError(f'is no parquet file ({error})') from error


def _text(path: str) -> str:
    """What stands in a file, without the mark that spreadsheets put before it."""
    with open(path, 'rb') as f:
        content = f.read()
    try:
        if b'\0' in content:
            raise ValueError(f'line {_line(content, content.index(0))} holds a NUL byte; save the file as UTF-8')
        return content.decode('utf-8-sig')
    except UnicodeDecodeError as error:
        line = _line(content, error.start)
        raise ValueError(f'line {line} is no UTF-8 ({error.reason}); save the file as UTF-8') from error


def _line(content: bytes, position: int) -> int:
    return content.count(b'\n', 0, position) + 1


def _parse(text: str, otherwise: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{otherwise} ({error})') from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f'{constant} is no number of JSON')


def _numbered(rows: Iterable[Any]) -> Iterator[Tuple[str, Any]]:
    return ((f'row {number}', row) for number, row in enumerate(rows, 1))
