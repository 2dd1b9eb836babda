"""Which column of a user's data is what."""
import math
import re
from decimal import Decimal
from typing import Any, Dict, List, Optional, Sequence

import click

from ding_common import ConfigError, parallel
from dizoo_llm.base.problem import check_unanswered, final_answer, is_missing

# Columns that are looked for, in this order, where a config names none. verl has its answers in ``reward_model``.
USUAL = dict(
    prompt=('prompt', 'messages', 'question', 'problem'),
    answer=('answer', 'solution', 'ground_truth', 'reward_model.ground_truth'),
)
_HALF = re.compile('[\ud800-\udfff]')  # JSON allows lone surrogates, on which tokenizers and files fail later


class Columns:
    """
    The columns that a config names by ``env.task.prompt`` and so on, or that are found in the first row. A name may be
    a path into nested columns, ``reward_model.ground_truth``.
    """

    def __init__(
            self, where: str, first: Dict[str, Any], given: Dict[str, Optional[str]], needed: List[str],
            known: Sequence[str]
    ) -> None:
        """
        ``where`` begins messages; a row must have those that are ``given``, and those that are ``needed``. Rows that
        have a column of one of the ``known`` names use it as this, and no line tells so.
        """
        self._where, self._required = where, {*needed, *(name for name, column in given.items() if column is not None)}
        self.names = dict(given)
        for name, usual in USUAL.items():
            if self.names[name] is None:
                self.names[name] = next((column for column in usual if has(first, column)), None)
        found = [f'{name} {self.names[name]!r}' for name in USUAL if self.names[name] != given[name]]
        if found and not known and parallel.rank() == 0:
            click.echo(f"{self._where}: columns: {', '.join(found)}")
        self.names.update((name, self.names[name] or name) for name in known)

    def answered(self, place: str, row: Dict[str, Any]) -> Dict[str, Any]:
        """The row; without an answer, the assistant's turn at the end of its messages becomes the answer."""
        prompt, answer = self.names['prompt'], self.names['answer'] or USUAL['answer'][0]
        messages = value_of(row, prompt) if prompt else None
        said = final_answer(messages)
        if said is None:
            return row
        if value_of(row, answer) is not None:
            check_unanswered(messages, f'{self._where}: {place}, which has an answer in {answer!r} (env.task.answer)')
        self.names['answer'] = answer
        return {**row, prompt: messages[:-1], answer: said}

    def check(self, place: str, row: Dict[str, Any]) -> None:
        """Raise a ``ConfigError`` if a row lacks a column, or has in it what is no text."""
        where = f'{self._where}: {place}'
        for name, column in self.names.items():
            missing = name == 'answer' and column is not None and is_missing(value_of(row, column))
            if name not in self._required and not missing:
                continue
            if column is None or not has(row, column):
                wanted = repr(column) if column else f"column for the {name} ({', '.join(USUAL[name])})"
                raise ConfigError(f"{where} has no {wanted} (env.task.{name}); it has {', '.join(map(str, row)):.200}.")
            value = value_of(row, column)
            if value is None:
                raise ConfigError(f'{where} has no value in {column!r} (env.task.{name}).')
            if not is_text(value) and not (name == 'prompt' and isinstance(value, list)):
                raise ConfigError(
                    f'{where} has {value!r:.80} in {column!r} (env.task.{name}); must be text or a number.'
                )


def has(row: Dict[str, Any], column: str) -> bool:
    """Whether a row has a column, or a nested one."""
    outer, _, inner = column.partition('.')
    return column in row or bool(inner) and isinstance(row.get(outer), dict) and has(row[outer], inner)


def value_of(row: Dict[str, Any], column: str) -> Any:
    """The value of a column, or of a nested one; None if the row lacks it."""
    if column in row or not has(row, column):
        return row.get(column)
    outer, _, inner = column.partition('.')
    return value_of(row[outer], inner)


def is_text(value: Any) -> bool:
    """Whether a value can be used as text: no collection, no NaN or Inf, no lone surrogate."""
    if isinstance(value, (float, Decimal)):
        return math.isfinite(value)
    if isinstance(value, str):
        return _HALF.search(value) is None
    return not isinstance(value, (dict, list, bytes)) and not is_missing(value)
