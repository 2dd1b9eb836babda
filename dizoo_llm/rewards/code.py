"""
Programs in Python that a model wrote, scored by the tests of their row. A completion and its tests, in each of the
forms that data sets have:

    Here it is:
    ```python
    def double(n):
        return 2 * n

    print(double(int(input())))
    ```
    [["1", "2"], ["10", "20"]]                              inputs and outputs: lists, dicts with input and output, or
    {"inputs": ["1", "10"], "outputs": ["2", "20"]}         one dict of lists (APPS)
    ["assert double(1) == 2", "assert double(10) == 20"]    assert statements, each text a test (MBPP)
    "def check(candidate):\n    assert candidate(1) == 2"   one text (HumanEval); ``check`` gets the function

A list or a dict may be written as JSON. What a program cannot do is said in ``dizoo_llm/servers/sandbox.py``.
"""
import json
import os
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple, Union

import click

from ding_common import ConfigError, Rule, nearest, parallel
from dizoo_llm.base import Problem
from dizoo_llm.base.task import check_values
from dizoo_llm.servers import MOST
from dizoo_llm.servers.sandbox import Sandbox, why_not_isolated

from .parameters import Keys, row_of

PYTHON = ('', 'py', 'python', 'python3')  # languages of a fenced block
_PAIRS = (('inputs', 'outputs'), ('input', 'output'))


class Tests(NamedTuple):
    """Of a row: pairs of input and output, or texts of assert statements."""
    pairs: Sequence[Tuple[str, str]]
    texts: Sequence[str]


class Code:
    """Scores completions by the share of tests that their program passes."""

    def __init__(
            self,
            tests: str,
            function: Optional[str] = None,
            program_in: str = 'block',
            share: bool = True,
            seconds: float = 5.0,
            memory: int = 512,
            processes: int = 8,
            *,
            keys: Keys,
            where: str
    ) -> None:
        """
        Arguments:
            - tests (:obj:`str`): The column of the tests.
            - function (:obj:`Optional[str]`): The column of the name of the function that ``check`` gets.
            - program_in (:obj:`str`): ``'block'``, the only fenced block of Python, or ``'whole'``, the completion.
            - share (:obj:`bool`): Whether a part of the tests scores its share. False: 1 for all of them, else 0.
            - seconds (:obj:`float`): CPU time for a program: for each input, or for all assert statements of a row.
            - memory (:obj:`int`): MiB of a process.
            - processes (:obj:`int`): Maximum number of processes and threads of a program.
            - keys (:obj:`Keys`): The columns of the data.
            - where (:obj:`str`): The config key, for messages.
        """
        for key, column in dict(tests=tests, function=function).items():
            if column is not None and column not in keys:
                raise ConfigError(f'{where}.{key} = {column!r}: there is no such column; {nearest(column, keys)}')
            if column is not None and keys[column] is not None:
                raise ConfigError(f'{where}.{key} = {column!r}: problem {keys[column]} has no such column. Add it.')
        check_values(
            where,
            program_in=(program_in, Rule.one_of('block', 'whole')),
            seconds=(seconds, Rule.number(0.1, 3600)),
            memory=(memory, Rule.integer(64, 1 << 20)),
            processes=(processes, Rule.integer(1, 1000))
        )
        self._tests, self._function, self._share = tests, function, share
        self._extract = block_of if program_in == 'block' else str
        self._sandbox = Sandbox(seconds, memory << 20, processes=processes)
        try:
            _tell(why_not_isolated())
        except RuntimeError as error:
            raise ConfigError(f"{where}.type = 'code': {error}") from error

    def scores(self, problems: Sequence[Problem], completions: Sequence[str]) -> List[Union[float, Exception]]:
        """The score of each completion, or why it has none. Equal programs of equal tests run once."""
        threads = ThreadPoolExecutor(min(MOST, len(os.sched_getaffinity(0))))
        asked = [
            (self._extract(completion), row[self._tests], self._function and str(row[self._function]))
            for row, completion in zip(map(row_of, problems), completions)
        ]
        keys = list(map(repr, asked))
        try:
            running = {key: threads.submit(self._score, *each) for key, each in dict(zip(keys, asked)).items()}
            return [_result(running[key]) for key in keys]
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def _score(self, program: Optional[str], column: Any, function: Optional[str]) -> float:
        tests = tests_of(column)
        if program is None:
            return 0.0
        if tests.texts:
            passed, number = self._sandbox.passed(program, tests.texts, function), len(tests.texts)
        else:
            passed, number = 0, len(tests.pairs)
            for done, (given, expected) in enumerate(tests.pairs, 1):
                written = self._sandbox.output_of(program, given)
                passed += written is not None and _lines(written.decode('utf-8', 'replace')) == _lines(expected)
                if not self._share and passed < done:
                    break
        return passed / number if self._share else float(passed == number)


def _result(running: Future) -> Union[float, Exception]:
    error = running.exception()
    if error is not None and not isinstance(error, (OSError, RuntimeError, ValueError)):
        raise error
    return running.result() if error is None else error


@lru_cache(maxsize=None)
def _tell(reason: Optional[str]) -> None:
    """Say once in a process what programs are not kept from."""
    if reason is not None and parallel.rank() == 0:
        click.echo(
            f"reward of type 'code': no namespaces for programs ({reason}). They run with limits of time, memory and "
            'processes, but can read what this user can and use the network.'
        )


def block_of(completion: str) -> Optional[str]:
    """The content of the fenced blocks of Python, if all are equal and closed, otherwise None."""
    found, opened, language = [], None, ''
    for line in completion.split('\n'):
        mark = line.strip()
        if not mark.startswith('```'):
            if opened is not None:
                opened.append(line)
        elif opened is None:
            opened, language = [], mark[3:].strip().lower()
        elif mark == '```':
            if language in PYTHON:
                found.append('\n'.join(opened))
            opened = None
        else:  # a block within a block
            return None
    return found[0] if found and opened is None and all(each == found[0] for each in found) else None


def tests_of(value: Any) -> Tests:
    """The tests in a column. Raises a ``ValueError`` for another form."""
    if isinstance(value, str):
        try:
            read = json.loads(value)
        except (ValueError, RecursionError):
            read = None
        value = read if isinstance(read, (list, dict)) else [value]
    if isinstance(value, dict):
        columns = next(([value[a], value[b]] for a, b in _PAIRS if a in value and b in value), [])
        lists = all(isinstance(column, (list, tuple)) for column in columns)
        value = list(zip(*columns)) if lists and len(set(map(len, columns))) == 1 else None
    if isinstance(value, (list, tuple)) and len(value) > 0:
        if all(isinstance(each, str) for each in value):
            return Tests([], list(value))
        pairs = [(each.get('input'), each.get('output')) if isinstance(each, dict) else each for each in value]
        if all(isinstance(p, (list, tuple)) and len(p) == 2 and all(isinstance(x, str) for x in p) for p in pairs):
            return Tests([tuple(pair) for pair in pairs], [])
    raise ValueError(f'tests {value!r:.100}: must be texts of assert statements, or pairs of input and output')


def _lines(text: str) -> List[str]:
    """Without white space at the ends of lines and of the text."""
    return [line.rstrip() for line in text.rstrip().split('\n')]
