"""
Functions in a process of their own, which is ended when a call takes too long. There is one for each process that asks,
not for each environment: environments of one process take turns, and a hundred processes would need gigabytes.

It is forked, because a new interpreter would import DI-engine and torch for seconds. Three things follow:

1. A function must not use torch, whose threads do not exist after a fork.
2. It must not keep anything between calls, since it does not know which episode calls it.
3. A process that an environment inherits from its parent is not its own; it starts another one.
"""
import os
import signal
import sys
import warnings
from functools import lru_cache, partial
from typing import Any, Callable, Dict, NamedTuple, Sequence, Tuple

from . import Raised, Servers
from .serve import answer


class Answer(NamedTuple):
    """What a call returned: the result, or ``error: ...``."""
    text: str
    failed: bool


class ToolProcess:
    """
    Calls functions in another process, which starts at the first call and after each that had to be ended. A call takes
    at most ``seconds``; of an answer ``max_chars`` characters are kept.
    """

    def __init__(self, functions: Sequence[Callable], seconds: float, max_chars: int) -> None:
        self._functions = {function.__name__: partial(_text, function, max_chars) for function in functions}
        self._seconds, self._max_chars = seconds, max_chars
        most_bytes = 1_000_000 + 12 * max_chars  # a character may have as many in JSON
        self._servers = Servers(
            'env.task.functions', self._start, seconds=seconds + 1, wall=seconds, times=1, most_bytes=most_bytes
        )  # the process itself ends a call a second later than this one does

    def call(self, name: str, arguments: Dict[str, Any]) -> Answer:
        """Call a function with numbers, texts and bools by name."""
        found, = self._servers.ask([(name, arguments)], [name])
        if isinstance(found, str):
            return Answer(found, False)
        if isinstance(found, Raised):
            told = found.reason
        elif isinstance(found, TimeoutError):
            told = f'{name} took more than {self._seconds:g} s'
        else:
            told = f'{name} ended its process'
        # Without halves of characters, which no tokenizer reads.
        return Answer(f'error: {told}'[:self._max_chars].encode('utf-8', 'replace').decode(), True)

    def _start(self, read: int, write: int) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', DeprecationWarning)  # of fork with threads: see the module's docstring
            pid = os.fork()
        if pid == 0:
            try:
                self._serve(read, write)
            finally:
                os._exit(0)  # runs no handler of the parent, and flushes none of its files
        return pid

    def _serve(self, read: int, write: int) -> None:
        """Answer calls until the parent closes its end or dies. A call ends at the limit by itself as well."""
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for i in range(3):
            os.dup2(null, i)
        low, high = sorted((read, write))  # all others are the parent's files and connections
        for first, end in ((3, low), (low + 1, high), (high + 1, os.sysconf('SC_OPEN_MAX'))):
            os.closerange(first, end)
        sys.stdin, sys.stdout, sys.stderr = None, *(open(i, 'w', encoding='utf-8') for i in (1, 2))
        os.write(write, b'"ready"\n')
        answer(self._functions, open(read, 'rb'), open(write, 'wb'), signal.ITIMER_REAL)


def _text(function: Callable, max_chars: int, arguments: Dict[str, Any]) -> str:
    return str(function(**arguments))[:max_chars].encode('utf-8', 'replace').decode()


@lru_cache(maxsize=None)
def process_of(functions: Tuple[Callable, ...], seconds: float, max_chars: int) -> ToolProcess:
    """The one for these arguments, for all environments of this process."""
    return ToolProcess(functions, seconds, max_chars)
