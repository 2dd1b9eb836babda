"""
The task of a data file (jsonl, json, csv, parquet). One line of GSM8K's train.jsonl,
and a right completion for ``answer_in='####'`` and ``check='number'``:

    {"question": "Natalia sold clips to 48 of her friends ...", "answer": "... she sold 48+24 = 72 clips.\n#### 72"}
    48 / 2 = 24 in May, 48 + 24 = 72.\n#### 72
"""
import math
import os
import re
import threading
import warnings
from decimal import Decimal
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import click

from ding_common import ConfigError, Rule, parallel
from dizoo_llm.base import TASK_REGISTRY, Parts, Problem
from dizoo_llm.base.problem import as_text, check_unanswered, final_answer, is_missing, is_prompt, messages_of
from dizoo_llm.base.task import check_choice, check_values
from dizoo_llm.rewards import CHECKS, EXTRACTORS, WRITTEN

from .facts import digest
from .listed import ListTask
from .packed import Packed
from .rows import read_rows

_HALF = re.compile('[\ud800-\udfff]')  # JSON allows lone surrogates, on which tokenizers and files fail later
MOST_READ = 16  # data files of a process that are kept
_READ: Dict[Tuple, Tuple[Sequence[Problem], Sequence[Problem]]] = {}  # training and held-out problems
_READING = threading.Lock()


@TASK_REGISTRY.register('file')
class FileTask(ListTask):
    """
    Problems from a file with a column of prompts and one of answers. Reward part: ``right``. A process reads a file
    once for all environments, until it changes, and forked processes share its memory.
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
            fact: Optional[str] = None,
            template: str = '{prompt}',
            reference_in: str = 'whole',
            answer_in: str = 'whole',
            check: str = 'exact',
            check_rows: Optional[int] = 100,
    ) -> None:
        """
        Arguments:
            - path (:obj:`str`): ``.jsonl``, ``.json`` (a list), ``.csv`` or ``.parquet`` (extra ``parquet``).
            - eval_path (:obj:`Optional[str]`): File of evaluation problems; None holds out ``eval_size`` of ``path``.
            - eval_size (:obj:`int`): Maximum number of evaluation problems. 0 uses all of ``eval_path``; if that is \
                None, evaluation uses the training problems.
            - prompt (:obj:`str`): Column of the prompts, text or lists of chat messages.
            - answer (:obj:`str`): Column of the reference answers. A row without one whose messages end with a turn \
                of the assistant has this turn as its answer.
            - kind (:obj:`Optional[str]`): Column by which evaluation groups its results.
            - fact (:obj:`Optional[str]`): Column that names what a row is a form of. Training has no row with the \
                fact of a held-out one. None: the prompt, without regard to case, punctuation and white space.
            - template (:obj:`str`): Text of the prompt, ``{prompt}`` is replaced. Not applied to chat messages.
            - reference_in (:obj:`str`): How to extract the reference answer, one of ``EXTRACTORS``; '####' for GSM8K.
            - answer_in (:obj:`str`): How to extract a completion's answer, 'whole', 'answer_tag', 'boxed' or '####'.
            - check (:obj:`str`): 'exact', 'number', or 'math_verify' (extra ``math``).
            - check_rows (:obj:`Optional[int]`): Number of reference answers of a file, spread over it, that \
                'math_verify' evaluates when it is read. None: all. The other checks always read all.
        """
        check_choice('answer_in', answer_in, EXTRACTORS)
        check_choice('reference_in', reference_in, EXTRACTORS)
        check_choice('check', check, CHECKS)
        if '{prompt}' not in template:
            raise ConfigError(f'env.task.template = {template!r}: must contain {{prompt}}.')
        self._answer_in, self._check, self._written = EXTRACTORS[answer_in], CHECKS[check], WRITTEN[answer_in]
        self._shown = reference_in == answer_in
        self._columns = dict(prompt=prompt, answer=answer, kind=kind, fact=fact)
        self._template, self._reference_in, self._check_name = template, reference_in, check
        check_values(check_rows=(check_rows, Rule.integer(1).or_none()))
        self._check_rows = check_rows if self.scores_batches else None
        options = eval_size, seed, self._columns, template, reference_in, check, check_rows
        key = (type(self), repr(options), *map(_stamp, (path, eval_path)))
        with _READING:
            if key not in _READ:
                held_out = None if eval_path is None else self._read('eval_path', eval_path)
                super().__init__(self._read('path', path), held_out, eval_size, seed)
                if len(_READ) >= MOST_READ:
                    _READ.pop(next(iter(_READ)))
                _READ[key] = self._items, self._held_out
            self._items, self._held_out = _READ[key]

    def _read(self, key: str, file: str) -> Packed:
        """The problems of the file that the config key ``key`` names."""
        where = f'env.task.{key} = {file!r}'
        problems, places, answered = Packed(), [], 0
        first: Dict[bytes, int] = {}  # text -> index of the first row with it
        repeated: List[Tuple[int, int]] = []  # rows with the text of an earlier one and another answer, and that one
        for place, own in read_rows(key, file):
            row = self._answered(f'{where}: {place}', own)
            answered += row is not own
            problem = self._problem(f'{where}: {place}', row)
            before = first.setdefault(digest(problem.text.split()), len(problems))
            if before < len(problems) and problem.answer != problems[before].answer:
                repeated.append((len(problems), before))
            problems.append(problem)
            places.append(place)
        number = len(problems) if self._check_rows is None else min(self._check_rows, len(problems))
        for i in [n * len(problems) // number for n in range(number)]:
            reference = problems[i].answer
            if not self._equal(f'{where}: {places[i]}', reference, reference):
                raise ConfigError(
                    f'{where}: {places[i]}: env.task.check = {self._check_name!r} rejects the reference answer '
                    f'{reference!r:.200}; env.task.reference_in = {self._reference_in!r} extracts it from the column.'
                )
        if number < len(problems) and parallel.rank() == 0:
            click.echo(
                f'{where}: env.task.check = {self._check_name!r} was tried on {number} of {len(problems):,} reference '
                'answers. Set env.task.check_rows=None to try all of them.'
            )
        contradicting = []
        every = 1 if self._check_rows is None else max(1, -(-len(repeated) // self._check_rows))
        compared = repeated[::every]
        for i, before in compared:
            one, other = problems[i].answer, problems[before].answer
            if not self._equal(f'{where}: {places[i]}', one, other):
                contradicting.append(f'{places[i]} after {places[before]}: {one!r:.80}, not {other!r:.80}')
        if contradicting:  # adds noise to the reward; common in large collections
            warnings.warn(
                f'{where}: {len(contradicting)} row(s) repeat a question with a different answer'
                f"{'' if len(compared) == len(repeated) else f' (of {len(compared)} that were compared)'}, for example "
                f'{contradicting[0]}.'
            )
        if answered > 0:
            warnings.warn(
                f"env.task.{key} = {file!r}: {answered} row(s) have no {self._columns['answer']!r} (env.task.answer); "
                "the assistant's turn at the end of their messages is their reference answer, and not read."
            )
        return problems

    def _answered(self, where: str, row: Dict[str, Any]) -> Dict[str, Any]:
        """The row; without an answer, the assistant's turn at the end of its messages becomes the answer."""
        messages, column = row.get(self._columns['prompt']), self._columns['answer']
        answer = final_answer(messages)
        if answer is None:
            return row
        if row.get(column) is not None:
            check_unanswered(messages, f'{where}, which has an answer in {column!r} (env.task.answer)')
        return {**row, self._columns['prompt']: messages[:-1], column: answer}

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
        self._check_columns(where, row)
        prompt, answer, kind, fact = (column and row[column] for column in self._columns.values())
        reference = EXTRACTORS[self._reference_in](as_text(answer))
        if reference is None:
            raise ConfigError(
                f'{where}: env.task.reference_in = {self._reference_in!r} finds no answer in {answer!r:.200}.'
            )
        text = prompt if isinstance(prompt, list) else self._template.replace('{prompt}', as_text(prompt))
        if not is_prompt(text) or not _is_text(Problem(text).text):
            raise ConfigError(f'{where}: {text!r:.80} is neither text nor {messages_of(text)}.')
        given = dict(solution=answer, kind=kind, fact=fact)
        return Problem(text, reference, {name: as_text(x) for name, x in given.items() if x is not None})

    def _equal(self, where: str, answer: str, reference: str) -> bool:
        try:
            score, = self._check([(answer, reference)])
        except ImportError as error:
            raise ConfigError(str(error)) from error
        except RuntimeError as error:  # no server can be started
            score = error
        if isinstance(score, Exception):
            raise ConfigError(
                f'{where}: env.task.check = {self._check_name!r} cannot read the reference answer {reference!r:.200} '
                f'({score}).'
            ) from score
        return bool(score)

    @property
    def scores_batches(self) -> bool:
        """Whether an answer may take seconds, during which others are scored."""
        return self._check_name == 'math_verify'

    def score_batch(self, problems: List[Problem], completions: List[str]) -> List[Union[Parts, Exception]]:
        given = list(map(self._answer_in, completions))
        pairs = [('' if text is None else text, problem.answer) for text, problem in zip(given, problems)]
        return [
            dict(right=0.0) if text is None else score if isinstance(score, Exception) else dict(right=score)
            for text, score in zip(given, self._check(pairs))
        ]

    def demonstration(self, problem: Problem) -> str:
        return problem.metadata['solution'] if self._shown else self._written.format(problem.answer)


def _stamp(path: Optional[str]) -> Any:
    """Changes when the file does."""
    if path is None or not os.path.exists(path):
        return path
    found = os.stat(path)
    return path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _is_text(value: Any) -> bool:
    """Whether a value can be used as text: no collection, no NaN or Inf, no lone surrogate."""
    if isinstance(value, (float, Decimal)):
        return math.isfinite(value)
    if isinstance(value, str):
        return _HALF.search(value) is None
    return not isinstance(value, (dict, list, bytes)) and not is_missing(value)
