"""
Questions to other processes, which can be killed. They evaluate what a model wrote and what the maker of a tokenizer
wrote: 9^{9^{9^{9}}}, 1e99999999 or a chat template may take forever or all memory, and ignore signals.

Each process that asks has its own servers. Its threads take turns, and a fork starts servers of its own. A server is a
new interpreter, which imports no torch: a fork would keep a second copy of all memory that the process that learns
writes to. Only functions of the user run in a fork, see ``ToolProcess``.
"""
import atexit
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from functools import partial
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Union

SECONDS = 5.0  # of CPU time for one answer: a server that waits for a processor, or is stopped, is not late
WALL = 300.0  # seconds after which a server that does not compute is killed
SECONDS_TO_START = 60.0
MOST = 8  # servers of a scorer
PATIENCE = 0.5  # seconds without an answer after which one more server starts
MEMORY = 4 << 30  # bytes of all servers of one scorer together
MOST_BYTES = 1_000_000  # of an answer, and ten times as many as the question has
_FOLDER = os.path.dirname(os.path.abspath(__file__))


class Raised(RuntimeError):
    """A question whose function raised an error. ``reason`` is the error's type and message."""

    def __init__(self, told: str, reason: str) -> None:
        super().__init__(told)
        self.reason = reason


class _Server:
    """One process. Until it is ready, its question is None and its deadline that of its start."""

    def __init__(self, start: Callable[[int, int], int]) -> None:
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        try:
            self.pid = start(read, write)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(read)
            os.close(write)
        os.set_blocking(self._write, False)
        os.set_blocking(self._read, False)
        self._unsent, self._received = memoryview(b''), bytearray()
        self.ready = False
        self.question: Optional[bytes] = None
        self.deadline = time.monotonic() + SECONDS_TO_START

    def give(self, question: bytes, seconds: float) -> None:
        self.question, self.deadline = question, time.monotonic() + seconds
        self._unsent = memoryview(len(question).to_bytes(8, 'little') + question)
        self._send()

    def _send(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._write, self._unsent):]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # the end of its answers says the same
            self._unsent = memoryview(b'')

    def watch(self, poll: select.poll) -> None:
        poll.register(self._read, select.POLLIN)
        if self._unsent:
            poll.register(self._write, select.POLLOUT)

    def receive(self, most: int) -> Optional[bytes]:
        """An answer, without its end if it has more bytes than ``most``; b'' if the process has ended; None so far."""
        self._send()
        try:
            while not self._received.endswith(b'\n'):
                if len(self._received) > most:
                    return bytes(self._received)
                part = os.read(self._read, 1 << 16)
                if not part:
                    return b''
                self._received += part
        except BlockingIOError:
            return None
        answer, self._received = bytes(self._received), bytearray()
        return answer

    def kill(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has ended, or it is not yet the leader of its group
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.close()

    def close(self) -> None:
        os.close(self._write)
        os.close(self._read)


class Servers:
    """One server at first, and up to ``most`` while questions wait for others that take long."""

    def __init__(
            self,
            name: str,
            start: Union[str, Callable[[int, int], int]],
            missing: str = '',
            most: int = 1,
            seconds: float = SECONDS,
            wall: float = WALL,
            times: int = 2,
            most_bytes: int = MOST_BYTES
    ) -> None:
        """
        ``name`` is that of what answers, for messages. ``start`` is the name of the file in this folder whose functions
        answer, or a function that starts a process and returns its id: the process reads questions from the first file
        descriptor and writes answers to the second one. ``missing`` is what to say if what the file imports is not
        installed, and ``times`` how often a question is asked whose server exits or is killed. For the others see the
        constants with their defaults.
        """
        self._name, self._missing, self._most, self.seconds, self._wall = name, missing, most, seconds, wall
        self._start = partial(_interpreter, start, MEMORY // most) if isinstance(start, str) else start
        self._times, self._most_bytes = times, most_bytes
        self._lock = threading.Lock()  # held from questions to their answers
        self.running: List[_Server] = []
        atexit.register(self.end)
        os.register_at_fork(after_in_child=self._leave)

    def ask(self, questions: Sequence[Sequence[Any]], shown: Sequence[Any]) -> List[Any]:
        """
        Ask questions, the name of a function and its arguments each; equal ones once. ``shown`` is what each is about,
        for messages. An answer is the result as JSON has it; ``Raised`` if the function raised; a ``TimeoutError`` if
        it took too long; a ``RuntimeError`` if its server exited, or the answer is too long. Raises an ``ImportError``
        if something is not installed, and a ``RuntimeError`` if no server can be started.
        """
        lines = [pickle.dumps((self.seconds, *question)) for question in questions]
        with self._lock:
            try:
                answers = self._answers(dict(zip(lines, shown)))
            except BaseException:  # also of a signal: answers that still come are not those of the next questions
                self.end()
                raise
        return [answers[line] for line in lines]

    def _answers(self, shown: Dict[bytes, Any]) -> Dict[bytes, Any]:
        waiting: Deque[bytes] = deque(shown)
        answers: Dict[bytes, Any] = {}
        died: Dict[bytes, int] = Counter()
        moved = time.monotonic()  # when a server has started or answered
        while len(answers) < len(shown):
            for server in self.running:
                if waiting and server.ready and server.question is None:
                    server.give(waiting.popleft(), self._wall)
            more = bool(waiting) and len(self.running) < self._most and all(server.ready for server in self.running)
            if more and (not self.running or time.monotonic() - moved >= PATIENCE):
                try:
                    self.running.append(_Server(self._start))
                except OSError as error:
                    raise RuntimeError(f'{self._name} cannot be started ({error.strerror})') from error
                moved = time.monotonic()
                continue
            busy = [server for server in self.running if server.question or not server.ready]
            until = min(server.deadline for server in busy)
            poll = select.poll()
            for server in busy:
                server.watch(poll)
            poll.poll(max(0., (min(until, moved + PATIENCE) if more else until) - time.monotonic()) * 1000)
            for server in busy:
                most = self._most_bytes + 10 * len(server.question or b'')
                line = server.receive(most)
                if line is None and time.monotonic() < server.deadline:
                    continue
                moved, question, server.question = time.monotonic(), server.question, None
                if line and line.endswith(b'\n'):
                    found = json.loads(line)
                    if server.ready:
                        answers[question] = self._found(found, shown[question])
                    elif found is None:
                        raise ImportError(self._missing)
                    server.ready = True
                    continue
                server.kill()
                self.running.remove(server)
                if not server.ready:
                    what = 'exited' if line == b'' else f'took more than {SECONDS_TO_START:g} s'
                    raise RuntimeError(f'{self._name} {what} while it was started')
                died[question] += 1
                if not line and died[question] < self._times:
                    waiting.appendleft(question)
                else:
                    answers[question] = self._failure(line, most, shown[question])
        return answers

    def _found(self, found: Any, about: Any) -> Any:
        if found == 'late':
            return TimeoutError(f'{self._name} took more than {self.seconds:g} s for {about!r:.80}')
        result, reason = found
        return result if reason is None else Raised(f'{self._name} raised {reason:.200} for {about!r:.80}', reason)

    def _failure(self, line: Optional[bytes], most: int, about: Any) -> Exception:
        if line is None:
            return TimeoutError(f'{self._name} took more than {self._wall:g} s for {about!r:.80}')
        what = f'answers with more than {most:,} bytes to' if line else 'exited while processing'
        return RuntimeError(f'{self._name} {what} {about!r:.80}')

    def end(self) -> None:
        """End all servers."""
        while self.running:
            self.running.pop().kill()

    def _leave(self) -> None:
        """After a fork: the servers and the lock are those of the parent. Their input must not stay open here."""
        self._lock = threading.Lock()
        while self.running:
            self.running.pop().close()


def _interpreter(file: str, memory: int, read: int, write: int) -> int:
    one_thread = dict.fromkeys(('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS'), '1')
    paths = [os.path.join(_FOLDER, name) for name in ('serve.py', f'{file}.py')]
    process = subprocess.Popen(
        [sys.executable, *paths, str(memory)],
        stdin=read,
        stdout=write,
        start_new_session=True,
        env=dict(os.environ, **one_thread)
    )
    process.returncode = 0  # ``_Server`` waits for it
    return process.pid
