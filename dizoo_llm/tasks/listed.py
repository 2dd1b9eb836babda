"""
Tasks over a list of problems, and the task of a data file (jsonl, json, csv, parquet). One line of GSM8K's train.jsonl,
and a right completion for ``answer_in='####'`` and ``check='number'``:

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
from decimal import Decimal
from typing import Any, Dict, Iterable, Iterator, List, NoReturn, Optional, Sequence, Tuple

from dizoo_llm.rewards import CHECKS, EXTRACTORS, WRITTEN
from ding_common import ConfigError, Rule, check_is_file, check_links, nearest

from .base import TASK_REGISTRY, Problem, Task, as_text, is_missing, is_prompt, messages_of

_HALF = re.compile('[\ud800-\udfff]')  # JSON allows lone surrogates, on which tokenizers and files fail later


class ListTask(Task):
    """
    Overview:
        A task over a list of problems. Held-out problems, if any, are a separate list or are drawn with a seed. \
        Training never contains a problem with the text of a held-out one, compared without regard to white space.
    """

    def __init__(self, problems: Sequence[Problem], held_out: Optional[Sequence[Problem]], eval_size: int, seed: int):
        """
        Overview:
            Split the problems into training and evaluation.
        Arguments:
            - problems (:obj:`Sequence[Problem]`): All problems, or only those for training.
            - held_out (:obj:`Optional[Sequence[Problem]]`): Problems for evaluation; None draws them from ``problems``.
            - eval_size (:obj:`int`): Maximum number of evaluation problems, each text once. 0 uses all of \
                ``held_out``; if that is None, evaluation uses the training problems.
            - seed (:obj:`int`): Seed of the draw.
        Raises:
            - ConfigError: If no problem is left for training.
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
        lost, drawn = len(problems) - len(self._problems), len(texts)
        if 0 < len(problems) == lost:
            key, do = f'eval_size = {eval_size}', 'Lower eval_size, or add problems'
            if held_out is not None:
                key, do = 'eval_path', 'Use other problems in it'
            raise ConfigError(
                f'env.task.{key}: there is no problem for training. The {drawn} text(s) of the held-out problems are '
                f'those of all {lost} problems; training has no held-out text. {do}.'
            )
        if held_out is None and lost > drawn > 0:
            warnings.warn(
                f'env.task.eval_size = {eval_size}: {lost} of {len(problems)} problems are not trained, because '
                f'{drawn} text(s) are held out and some occur several times.'
            )

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
        Problems from a file with a column of prompts and one of answers. The only reward part is ``right``.
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
            - eval_path (:obj:`Optional[str]`): File of evaluation problems; None holds out ``eval_size`` of ``path``.
            - eval_size (:obj:`int`): Maximum number of evaluation problems. 0 uses all of ``eval_path``; if that is \
                None, evaluation uses the training problems.
            - seed (:obj:`int`): Seed that selects the held-out problems.
            - prompt (:obj:`str`): Column of the prompts, text or lists of chat messages.
            - answer (:obj:`str`): Column of the reference answers.
            - kind (:obj:`Optional[str]`): Column by which evaluation groups its results.
            - template (:obj:`str`): Text of the prompt, ``{prompt}`` is replaced. Not applied to chat messages.
            - reference_in (:obj:`str`): How to extract the reference answer, one of ``EXTRACTORS``; '####' for GSM8K.
            - answer_in (:obj:`str`): How to extract a completion's answer, 'whole', 'answer_tag', 'boxed' or '####'.
            - check (:obj:`str`): 'exact', 'number', or 'math_verify' (extra ``math``).
        Raises:
            - ConfigError: If an argument is invalid, or a file cannot be read or contains an invalid row.
        """
        _one_of('answer_in', answer_in, EXTRACTORS)
        _one_of('reference_in', reference_in, EXTRACTORS)
        _one_of('check', check, CHECKS)
        if '{prompt}' not in template:
            raise ConfigError(f'env.task.template = {template!r}: must contain {{prompt}}.')
        self._answer_in, self._check, self._written = EXTRACTORS[answer_in], CHECKS[check], WRITTEN[answer_in]
        self._shown = reference_in == answer_in
        self._columns = dict(prompt=prompt, answer=answer, kind=kind)
        self._template, self._reference_in, self._check_name = template, reference_in, check
        held_out = None if eval_path is None else self._read('eval_path', eval_path)
        super().__init__(self._read('path', path), held_out, eval_size, seed)

    def _read(self, key: str, file: str) -> List[Problem]:
        """The problems of the file that the config key ``key`` names."""
        problems, contradicting = [], []
        first: Dict[str, Tuple[str, str]] = {}  # text -> the first answer and its location
        for place, row in _rows(key, file):
            where = f'env.task.{key} = {file!r}: {place}'
            self._check_columns(where, row)
            problem = self._problem(where, row)
            before, there = first.setdefault(_words(problem), (problem.answer, place))
            if problem.answer != before and not self._check(problem.answer, before):
                contradicting.append(f'{place} after {there}: {problem.answer!r:.80}, not {before!r:.80}')
            problems.append(problem)
        if contradicting:  # adds noise to the reward; common in large collections
            warnings.warn(
                f'env.task.{key} = {file!r}: {len(contradicting)} row(s) repeat a question with a different answer, '
                f'for example {contradicting[0]}.'
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
                raise ConfigError(f'{where} has no value in {column!r} (env.task.{name}).')
            if not _is_text(row[column]) and not (name == 'prompt' and isinstance(row[column], list)):
                raise ConfigError(
                    f'{where} has {row[column]!r:.80} in {column!r} (env.task.{name}); must be text or a number.'
                )

    def _problem(self, where: str, row: Dict[str, Any]) -> Problem:
        prompt, answer, kind = (
            self._columns[name] and row[self._columns[name]] for name in ('prompt', 'answer', 'kind')
        )
        reference = EXTRACTORS[self._reference_in](as_text(answer))
        if reference is None:
            raise ConfigError(
                f'{where}: env.task.reference_in = {self._reference_in!r} finds no answer in {answer!r:.200}.'
            )
        try:
            same = self._check(reference, reference)
        except ImportError as error:
            raise ConfigError(str(error)) from error
        if not same:
            raise ConfigError(
                f'{where}: env.task.check = {self._check_name!r} rejects the reference answer {reference!r:.200}; '
                f'env.task.reference_in = {self._reference_in!r} extracts it from the column.'
            )
        text = prompt if isinstance(prompt, list) else self._template.replace('{prompt}', as_text(prompt))
        if not is_prompt(text) or not _is_text(Problem(text).text):
            raise ConfigError(f'{where}: {text!r:.80} is neither text nor {messages_of(text)}.')
        metadata = {} if self._columns['kind'] is None else dict(kind=as_text(kind))
        return Problem(text, reference, dict(metadata, solution=as_text(answer)))

    def score(self, problem: Problem, completion: str) -> Dict[str, Optional[float]]:
        given = self._answer_in(completion)
        return dict(right=0.0 if given is None else self._check(given, problem.answer))

    def demonstration(self, problem: Problem) -> str:
        return problem.metadata['solution'] if self._shown else self._written.format(problem.answer)


def _words(problem: Problem) -> str:
    return ' '.join(problem.text.split())


def _one_of(key: str, value: str, allowed: Dict) -> None:
    if value not in allowed:
        raise ConfigError(f'env.task.{key} = {value!r}: {nearest(str(value), allowed)}')


def _is_text(value: Any) -> bool:
    """Whether a value can be used as text: no collection, no NaN or Inf, no lone surrogate."""
    if isinstance(value, (float, Decimal)):
        return math.isfinite(value)
    if isinstance(value, str):
        return _HALF.search(value) is None
    return not isinstance(value, (dict, list, bytes)) and not is_missing(value)


def _rows(key: str, path: str) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """The rows of a file, each with its location for messages."""
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
            raise ConfigError(f'{where}: {place} is not an object with named fields: {row!r:.80}')
    return iter(rows)


def _jsonl(path: str) -> Iterator[Tuple[str, Any]]:
    for number, line in enumerate(io.StringIO(_text(path), newline=None), 1):
        if line.strip():
            yield f'line {number}', _parse(line, f'line {number} is not valid JSON')


def _json(path: str) -> Iterator[Tuple[str, Any]]:
    rows = _parse(_text(path), 'is not valid JSON')
    if not isinstance(rows, list):
        raise ValueError('must contain a list')
    yield from _numbered(rows)


def _csv(path: str) -> Iterator[Tuple[str, Dict[str, str]]]:
    reader = csv.DictReader(io.StringIO(_text(path), newline=''), strict=True)
    try:
        for place, row in _numbered(reader):
            if None in row:
                raise ValueError(f'{place} has more fields than the header')
            yield place, row
    except csv.Error as error:
        raise ValueError(f'the row that starts in line {reader.line_num + 1} is not valid CSV ({error})') from error


def _parquet(path: str) -> Iterator[Tuple[str, Dict[str, Any]]]:
    try:
        from pyarrow import ArrowException, float16, float32, float64, parquet, string
    except ImportError as error:
        raise ImportError("reading parquet needs the extra: pip install 'ding-grpo[parquet]'") from error
    try:
        table = parquet.read_table(path)
        for i, field in enumerate(table.schema):
            if field.type in (float16(), float32()):  # 0.1, and not 0.10000000149011612
                table = table.set_column(i, field.name, table[i].cast(string()).cast(float64()))
        yield from _numbered(table.to_pylist())
    except ArrowException as error:
        raise ValueError(f'is not a valid parquet file ({error})') from error


def _text(path: str) -> str:
    """The text of a file, without the byte order mark that spreadsheets add."""
    with open(path, 'rb') as f:
        content = f.read()
    try:
        if b'\0' in content:
            raise ValueError(f'line {_line(content, content.index(0))} contains a NUL byte; save the file as UTF-8')
        return content.decode('utf-8-sig')
    except UnicodeDecodeError as error:
        line = _line(content, error.start)
        raise ValueError(f'line {line} is not valid UTF-8 ({error.reason}); save the file as UTF-8') from error


def _line(content: bytes, position: int) -> int:
    return content.count(b'\n', 0, position) + 1


def _parse(text: str, otherwise: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{otherwise} ({error})') from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f'{constant} is not a JSON number')


def _numbered(rows: Iterable[Any]) -> Iterator[Tuple[str, Any]]:
    return ((f'row {number}', row) for number, row in enumerate(rows, 1))
