"""
Run ``math-verify`` in a separate process that can be killed. It evaluates expressions that a model wrote, and some
short ones, such as 9^{9^{9^{9}}}, run forever and ignore signals.

There is one server for each process that asks. Its threads take turns, and a fork starts a server of its own.
"""
import atexit
import json
import os
import select
import subprocess
import sys
import threading
from typing import Any, List

SECONDS = 5.0  # for one answer
SECONDS_TO_START = 60.0
# It ends with the process that started it, even if that is killed: at the end of its input, or by the alarm, whose
# default action needs no interpreter. math-verify's own timeouts would replace the alarm.
_SERVER = """
import json, logging, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
logging.disable(logging.CRITICAL)
try:
    from math_verify import parse, verify
except ImportError:
    print('null', flush=True)
    sys.exit()
print('[]', flush=True)
for line in sys.stdin:
    *texts, seconds = json.loads(line)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    gold, guess = (parse(f'${text}$', parsing_timeout=None) for text in texts)
    same = bool(gold) and bool(guess) and verify(gold, guess, timeout_seconds=None)
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(json.dumps(same), flush=True)
"""
_lock = threading.Lock()  # held from a question to its answer
_running: List[subprocess.Popen] = []  # at most one


def same_expression(given: str, answer: str) -> bool:
    """
    Overview:
        Whether ``math-verify`` considers both the same mathematical expression. A server that has died is started \
        again, once for each question.
    Arguments:
        - given (:obj:`str`): The model's answer.
        - answer (:obj:`str`): The reference.
    Raises:
        - ImportError: If ``math-verify`` is not installed.
        - TimeoutError: If it does not decide within ``SECONDS``.
        - RuntimeError: If its process exits.
    """
    question = json.dumps([answer, given, SECONDS + 1]).encode() + b'\n'
    with _lock:
        try:
            try:
                return _ask(question, f'{given!r:.80}')
            except (BrokenPipeError, EOFError):
                _end()
                return _ask(question, f'{given!r:.80}')
        except (BrokenPipeError, EOFError) as error:
            _end()
            raise RuntimeError(f'math-verify exited while processing {given!r:.80}') from error
        except BaseException:  # also of a signal: the answer, which still comes, is not that of the next question
            _end()
            raise


def _ask(question: bytes, what: str) -> bool:
    if not _running:
        _start()
    while question:
        question = question[_running[0].stdin.write(question):]
    return _read(SECONDS, what)


def _start() -> None:
    process = subprocess.Popen(
        [sys.executable, '-c', _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    _running.append(process)
    if _read(SECONDS_TO_START, 'its import') is None:
        raise ImportError("env.task.check = 'math_verify': needs the extra: pip install 'ding-grpo[math]'")


def _read(seconds: float, what: str) -> Any:
    stdout = _running[0].stdout
    if not select.select([stdout], [], [], seconds)[0]:
        raise TimeoutError(f'math-verify took more than {seconds:g} s for {what}')
    line = stdout.readline()
    if not line.endswith(b'\n'):
        raise EOFError
    return json.loads(line)


@atexit.register
def _end() -> None:
    while _running:
        process = _running.pop()
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _leave() -> None:
    """After a fork: the server and the lock are those of the parent. Its input must not stay open here."""
    global _lock
    _lock = threading.Lock()
    while _running:
        process = _running.pop()
        process.returncode = 0  # not a child of this process
        process.stdin.close()
        process.stdout.close()


os.register_at_fork(after_in_child=_leave)
