"""
Functions in a process of their own, which is ended when a call takes too long. There is one for each process that asks,
not for each environment: environments of one process take turns, and a hundred processes would need gigabytes.

It is forked, because a new interpreter would import DI-engine and torch for seconds. Three things follow:

1. A function must not use torch, whose threads do not exist after a fork.
2. It must not keep anything between calls, since it does not know which episode calls it.
3. A process that an environment inherits from its parent is not its own; it starts another one.
"""
import atexit
import json
import os
import select
import signal
import sys
import threading
import time
import warnings
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple


class Answer(NamedTuple):
    """
    Overview:
        What a call returned.
    Shapes:
        - text (:obj:`str`): The result, or ``error: ...``
        - failed (:obj:`bool`): Whether it is an error
    """
    text: str
    failed: bool


class ToolProcess:
    """
    Overview:
        Calls functions in another process, which starts at the first call and after each that had to be ended.
    Interfaces:
        ``call``, ``close``
    """

    _ALL: Dict[Tuple, 'ToolProcess'] = {}

    def __init__(self, functions: Dict[str, Callable], seconds: float, max_chars: int) -> None:
        """
        Arguments:
            - functions (:obj:`Dict[str, Callable]`): By name.
            - seconds (:obj:`float`): Time limit of a call.
            - max_chars (:obj:`int`): Maximum length of an answer; the rest is dropped.
        """
        self._functions, self._seconds, self._max_chars = functions, seconds, max_chars
        self._lock = threading.Lock()
        self._owner: Optional[int] = None
        self._pid: Optional[int] = None
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._leave)

    @classmethod
    def of(cls, functions: Dict[str, Callable], seconds: float, max_chars: int) -> 'ToolProcess':
        """The one for these arguments, for all environments of this process."""
        key = (tuple(functions.items()), seconds, max_chars)
        if key not in cls._ALL:
            cls._ALL[key] = cls(functions, seconds, max_chars)
        return cls._ALL[key]

    def call(self, name: str, arguments: Dict[str, Any]) -> Answer:
        """
        Overview:
            Call a function.
        Arguments:
            - name (:obj:`str`): Its name.
            - arguments (:obj:`Dict[str, Any]`): Numbers, texts and bools by name.
        Raises:
            - OSError: If no process can be started.
        """
        with self._lock:
            if self._owner != os.getpid():
                self._start()
            try:
                told = self._ask(json.dumps([name, arguments]).encode() + b'\n')
            except BaseException:  # of a signal: the answer, which still comes, is not that of the next call
                self.close()
                raise
            if isinstance(told, str):
                self.close()
                return Answer(f'error: {name} {told}'[:self._max_chars], True)
            return Answer(*told)

    def close(self) -> None:
        """End the process, and what it has started."""
        if self._owner != os.getpid():
            return
        try:
            os.killpg(self._pid, signal.SIGKILL)
        except ProcessLookupError:  # it has ended, or it is not yet the leader of its group
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._write)
        os.close(self._read)
        self._owner = None

    def _leave(self) -> None:
        """After a fork: the process and the lock are those of the parent, whose thread may hold it."""
        self._lock = threading.Lock()
        if self._owner is not None:
            self._owner = None
            os.close(self._write)
            os.close(self._read)

    def _ask(self, line: bytes) -> Any:
        """The answer, or what happened instead."""
        deadline = time.monotonic() + self._seconds
        written, answer = 0, b''
        try:
            while not answer.endswith(b'\n'):
                writes = [self._write] if written < len(line) else []
                left = max(deadline - time.monotonic(), 0)
                reads, writes, _ = select.select([self._read], writes, [], left)
                if writes:
                    written += os.write(self._write, line[written:written + select.PIPE_BUF])
                if reads:
                    more = os.read(self._read, 65536)
                    if not more:
                        return 'ended its process'
                    answer += more
                elif not writes:
                    return f'took more than {self._seconds:g} s'
        except BrokenPipeError:
            return 'ended its process'
        return json.loads(answer)

    def _start(self) -> None:
        child_read, self._write = os.pipe()
        self._read, child_write = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', DeprecationWarning)  # of fork with threads: see the module's docstring
            pid = os.fork()
        if pid == 0:
            try:
                self._serve(child_read, child_write)
            finally:
                os._exit(0)  # runs no handler of the parent, and flushes none of its files
        os.close(child_read)
        os.close(child_write)
        self._pid, self._owner = pid, os.getpid()

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
        for line in open(read, 'rb'):
            signal.setitimer(signal.ITIMER_REAL, self._seconds + 1)
            answer = self._answer(*json.loads(line))
            signal.setitimer(signal.ITIMER_REAL, 0)
            data = json.dumps(answer).encode() + b'\n'
            while data:
                data = data[os.write(write, data):]

    def _answer(self, name: str, arguments: Dict[str, Any]) -> Answer:
        try:
            text, failed = str(self._functions[name](**arguments)), False
        except BaseException as error:  # a user's function may raise anything
            text, failed = f'error: {type(error).__name__}: {_said(error)}', True
        # Without halves of characters, which no tokenizer reads.
        return Answer(text[:self._max_chars].encode('utf-8', 'replace').decode(), failed)


def _said(error: BaseException) -> str:
    try:
        return ' '.join(str(error).split())
    except BaseException:  # as in _answer
        return 'its message cannot be read'
