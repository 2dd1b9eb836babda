"""
Programs that a model wrote, each in fresh interpreters with limits. Where the kernel allows it, they have namespaces of
their own: no network, no file but Python's own ones, which they cannot change, and an empty folder; all their processes
end with the first one. Elsewhere they have the limits alone, and root runs them as another user.
"""
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import lru_cache
from typing import Any, BinaryIO, Dict, List, NamedTuple, Optional, Sequence

from .confined import SETUP_FAILED

GRACE = 5.0  # seconds for a process to start, and to end at its own limit
_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'confined.py')


class Sandbox(NamedTuple):
    """
    Limits of a program: ``seconds`` of CPU time for each of its processes, and three times as long in all;
    ``memory`` in bytes for each; ``output`` in bytes; and the number of its processes and threads.
    """
    seconds: float = 5.0
    memory: int = 512 << 20
    output: int = 1_000_000
    processes: int = 8
    isolated: Optional[bool] = None  # None: if ``why_not_isolated`` finds no reason against it

    def output_of(self, program: str, text: str) -> Optional[bytes]:
        """What a program writes for an input; None if it fails, or a limit ends it."""
        with ExitStack() as files:
            given = files.enter_context(_file(text.encode('utf-8', 'surrogatepass')))
            read, write = _pipe(files)
            process = self._start(files, dict(mode='program', program=program), (), write, given)
            written = self._read(read, self.output)
            return written if self._code(process) == 0 and len(written) <= self.output else None

    def passed(self, program: str, tests: Sequence[str], function: Optional[str] = None) -> int:
        """How many texts of assert statements are true of a program. Their ``check``, if any, gets ``function``."""
        with ExitStack() as files:
            (questions, ask), (answers, answer), (read, write) = (_pipe(files) for _ in range(3))
            job = dict(mode='functions', program=program)
            other = self._start(files, job, (questions, answer))
            job = dict(mode='tests', tests=list(tests), function=function)
            process = self._start(files, job, (answers, ask, write))
            verdicts = self._read(read, len(tests))
            self._code(process)
            self._code(other, kill=True)
            return verdicts[:len(tests)].count(b'1')

    def _start(
            self,
            files: ExitStack,
            job: Dict[str, Any],
            pipes: Sequence[BinaryIO],
            stdout: Any = subprocess.DEVNULL,
            stdin: Any = subprocess.DEVNULL
    ) -> subprocess.Popen:
        """A process of a job, which gets these ends of pipes and that of its output; this process closes them."""
        isolated = why_not_isolated() is None if self.isolated is None else self.isolated
        uid = 2 ** 30 + secrets.randbelow(2 ** 29)  # of its own, so that other processes do not count as its
        fds = [pipe.fileno() for pipe in pipes]
        job.update(self._asdict(), isolated=isolated, wall=3 * self.seconds, uid=uid, fds=fds)
        if not isolated:
            job['folder'] = files.enter_context(
                tempfile.TemporaryDirectory(prefix='program', ignore_cleanup_errors=True)
            )
            os.chmod(job['folder'], 0o777)
        file = files.enter_context(_file(json.dumps(job).encode()))
        process = subprocess.Popen(
            [sys.executable, '-I', '-S', '-X', 'utf8', _FILE,
             str(file.fileno())],
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=dict(PATH='/usr/bin:/bin', LANG='C.UTF-8'),
            pass_fds=[file.fileno(), *fds],
            cwd='/',
            start_new_session=True
        )
        files.enter_context(process.stderr)
        files.callback(_kill, process)
        for pipe in (*pipes, *([] if stdout == subprocess.DEVNULL else [stdout])):
            pipe.close()
        return process

    def _read(self, pipe: BinaryIO, most: int) -> bytes:
        """What a process writes, up to its end, its limit of time, or one byte more than ``most``."""
        written, until = bytearray(), time.monotonic() + 3 * self.seconds + GRACE
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while len(written) <= most and (left := until - time.monotonic()) > 0:
            if poll.poll(left * 1000):
                part = pipe.read(min(1 << 16, most + 1 - len(written)))
                if not part:
                    break
                written += part
        pipe.close()
        return bytes(written)

    def _code(self, process: subprocess.Popen, kill: bool = False) -> int:
        """The exit code of a process, which has ended or is ended. Raises a ``RuntimeError`` if it was not set up."""
        try:
            code = process.wait(0 if kill else GRACE)
        except subprocess.TimeoutExpired:
            _kill(process)
            code = process.returncode
        if code == SETUP_FAILED:
            told = process.stderr.read(1000).decode(errors='replace').strip()
            if told:
                raise RuntimeError(f'a program could not be confined ({told})')
        return code


def _kill(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.terminate()  # it then ends all that it has started
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:  # a program of the same user may have stopped it
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _pipe(files: ExitStack) -> List[BinaryIO]:
    """The ends to read and to write of a pipe, without a buffer."""
    return [files.enter_context(os.fdopen(fd, mode, 0)) for fd, mode in zip(os.pipe(), ('rb', 'wb'))]


def _file(content: bytes) -> BinaryIO:
    """A file without a name, from its beginning."""
    file = tempfile.TemporaryFile()
    file.write(content)
    file.seek(0)
    return file


@lru_cache(maxsize=None)
def why_not_isolated() -> Optional[str]:
    """Why programs of this process have no namespaces; None if they have. Raises a ``RuntimeError`` if none runs."""
    reasons = []
    for isolated in (True, False):
        try:
            written = Sandbox(isolated=isolated).output_of('import decimal\nprint(decimal.Decimal(input()))', '5')
        except RuntimeError as error:
            reasons.append(str(error))
            continue
        if written == b'5\n':
            return reasons[0] if reasons else None
        reasons.append('a program of one line fails')
    raise RuntimeError(f'no program can be run: {reasons[0]}; {reasons[1]}')
