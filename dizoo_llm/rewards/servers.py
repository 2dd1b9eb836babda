"""
Scorers of other projects in separate processes that can be killed. They evaluate what a model wrote, and some short
texts, such as 9^{9^{9^{9}}} or 1e99999999, take forever or all memory, and ignore signals.

Each process that asks has its own servers. Its threads take turns, and a fork starts servers of its own. A server is a
new interpreter: a fork would keep a second copy of all memory that the process that learns writes to. What answers is
a fork of the server, so that after one that took too long the next one imports nothing.
"""
import atexit
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from multiprocessing import connection
from typing import Any, Deque, Dict, List, Optional, Sequence

SECONDS = 5.0  # for one answer
SECONDS_TO_START = 60.0
MOST = 8  # servers of a process
PATIENCE = 0.5  # seconds without an answer after which one more server starts
LATE = 5.0  # seconds after the limit within which a server says that it has passed
# It ends with the process that started it, even if that is killed: at the end of its input, or by the alarm, whose
# default action needs no interpreter. A scorer's own timeouts would replace the alarm. What a scorer prints is dropped.
_SERVER = """
import sys
sys.path[:] = [path for path in sys.path if path]  # without the current folder
import json, logging, os, resource, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
logging.disable(logging.CRITICAL)
answers = os.fdopen(os.dup(1), 'w', buffering=1)
for stream in (1, 2):
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
try:
    exec(sys.argv[1])
except ImportError:
    print('null', file=answers)
    sys.exit()
most = resource.getrlimit(resource.RLIMIT_AS)[1]
try:
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30 if most < 0 else min(4 << 30, most), most))
except (OSError, ValueError):  # not on this system
    pass
print('[]', file=answers)
while True:
    own = os.fork()
    if own == 0:
        for line in sys.stdin:
            question, seconds = json.loads(line)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            found = answer(*question)
            signal.setitimer(signal.ITIMER_REAL, 0)
            print(json.dumps(found), file=answers)
        sys.exit()
    if os.waitstatus_to_exitcode(os.waitpid(own, 0)[1]) != -signal.SIGALRM:
        sys.exit()
    print('"late"', file=answers)
"""


class _Server:
    """One process. Until it is ready, its question is None and its deadline that of its start."""

    def __init__(self, code: str) -> None:
        one_thread = dict.fromkeys(('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS'), '1')
        self.process = subprocess.Popen(
            [sys.executable, '-c', _SERVER, code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            env={
                **os.environ,
                **one_thread
            }
        )
        self.ready = False
        self.question: Optional[bytes] = None
        self.deadline = time.monotonic() + SECONDS_TO_START

    def give(self, question: bytes) -> None:
        self.question, self.deadline = question, time.monotonic() + SECONDS + LATE
        try:
            while question:
                question = question[self.process.stdin.write(question):]
        except BrokenPipeError:  # the end of its answers says the same
            pass

    def kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has ended
            pass
        self.process.wait()
        self.close()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()


class Servers:
    """
    Overview:
        Servers that answer questions, each in at most ``SECONDS``. There is one at first. While questions wait for \
        others that take long, more are started, up to ``MOST``.
    Interfaces:
        ``ask``, ``end``
    """

    def __init__(self, name: str, missing: str, code: str) -> None:
        """
        Arguments:
            - name (:obj:`str`): Of the scorer, for messages.
            - missing (:obj:`str`): What to say if its code cannot be imported.
            - code (:obj:`str`): Defines ``answer``, whose arguments and result are JSON.
        """
        self._name, self._missing, self._code = name, missing, code
        self._lock = threading.Lock()  # held from questions to their answers
        self.running: List[_Server] = []
        atexit.register(self.end)
        os.register_at_fork(after_in_child=self._leave)

    def ask(self, questions: Sequence[Sequence[Any]], shown: Sequence[str]) -> List[Any]:
        """
        Overview:
            Ask questions, equal ones once. A server that has died is started again, once for each question.
        Arguments:
            - questions (:obj:`Sequence[Sequence]`): Arguments of ``answer``.
            - shown (:obj:`Sequence[str]`): The text that each question is about, for messages.
        Returns:
            - answers (:obj:`List`): For each question the result; a ``TimeoutError`` or ``RuntimeError`` if the \
                server took too long or exited.
        Raises:
            - ImportError: If the scorer is not installed.
            - RuntimeError: If no server can be started.
        """
        lines = [json.dumps([question, SECONDS]).encode() + b'\n' for question in questions]
        with self._lock:
            try:
                answers = self._answers(dict(zip(lines, shown)))
            except BaseException:  # also of a signal: answers that still come are not those of the next questions
                self.end()
                raise
        return [answers[line] for line in lines]

    def _answers(self, shown: Dict[bytes, str]) -> Dict[bytes, Any]:
        waiting: Deque[bytes] = deque(shown)
        answers: Dict[bytes, Any] = {}
        died: Dict[bytes, int] = Counter()
        moved = time.monotonic()  # when a server has started or answered
        while len(answers) < len(shown):
            for server in self.running:
                if waiting and server.ready and server.question is None:
                    server.give(waiting.popleft())
            more = bool(waiting) and len(self.running) < MOST and all(server.ready for server in self.running)
            if more and (not self.running or time.monotonic() - moved >= PATIENCE):
                self.running.append(_Server(self._code))
                moved = time.monotonic()
                continue
            busy = {server.process.stdout: server for server in self.running if server.question or not server.ready}
            until = min(server.deadline for server in busy.values())
            until = min(until, moved + PATIENCE) if more else until
            for ready in connection.wait(busy, max(0., until - time.monotonic())):
                server, moved = busy.pop(ready), time.monotonic()
                line = server.process.stdout.readline()
                if line.endswith(b'\n') and server.ready:
                    found = json.loads(line)
                    answers[server.question] = self._late(shown[server.question]) if found == 'late' else found
                elif line.endswith(b'\n') and json.loads(line) is None:
                    raise ImportError(self._missing)
                elif not line.endswith(b'\n'):
                    server.kill()
                    self.running.remove(server)
                    if not server.ready:
                        raise RuntimeError(f'{self._name} exited while it was started')
                    died[server.question] += 1
                    if died[server.question] > 1:
                        text = f'{self._name} exited while processing {shown[server.question]!r:.80}'
                        answers[server.question] = RuntimeError(text)
                    else:
                        waiting.appendleft(server.question)
                server.ready, server.question = True, None
            for server in busy.values():
                if server.deadline <= time.monotonic():
                    server.kill()
                    self.running.remove(server)
                    if not server.ready:
                        raise RuntimeError(f'{self._name} took more than {SECONDS_TO_START:g} s to start')
                    answers[server.question] = self._late(shown[server.question])
        return answers

    def _late(self, text: str) -> TimeoutError:
        return TimeoutError(f'{self._name} took more than {SECONDS:g} s for {text!r:.80}')

    def end(self) -> None:
        """End all servers."""
        while self.running:
            self.running.pop().kill()

    def _leave(self) -> None:
        """After a fork: the servers and the lock are those of the parent. Their input must not stay open here."""
        self._lock = threading.Lock()
        while self.running:
            server = self.running.pop()
            server.process.returncode = 0  # not a child of this process
            server.close()
