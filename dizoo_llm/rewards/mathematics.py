"""
Run ``math-verify`` in a separate process that can be killed. It evaluates expressions that a model wrote, and some
short ones, such as 9^{9^{9^{9}}}, run forever and ignore signals.
"""
import atexit
import json
import select
import subprocess
import sys
from typing import Any, List, Optional

SECONDS = 5.0  # for one answer
SECONDS_TO_START = 60.0
_SERVER = """
import json, logging, sys
logging.disable(logging.CRITICAL)
try:
    from math_verify import parse, verify
except ImportError:
    print('null', flush=True)
    sys.exit()
print('[]', flush=True)
for line in sys.stdin:
    # no timeouts of math-verify, which set signal handlers: the parent process has one
    gold, guess = (parse(f'${text}$', parsing_timeout=None) for text in json.loads(line))
    print(json.dumps(bool(gold) and bool(guess) and verify(gold, guess, timeout_seconds=None)), flush=True)
"""
_running: List[subprocess.Popen] = []  # at most one


def same_expression(given: str, answer: str) -> bool:
    """
    Overview:
        Whether ``math-verify`` considers both the same mathematical expression.
    Arguments:
        - given (:obj:`str`): The model's answer.
        - answer (:obj:`str`): The reference.
    Raises:
        - ImportError: If ``math-verify`` is not installed.
        - TimeoutError: If it does not decide within ``SECONDS``.
        - RuntimeError: If its process exits.
    """
    if not _running:
        _start()
    process = _running[0]
    process.stdin.write(json.dumps([answer, given]) + '\n')
    process.stdin.flush()
    return _read(SECONDS, f'{given!r:.80}')


def _start() -> None:
    process = subprocess.Popen(
        [sys.executable, '-c', _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding='utf-8'
    )
    _running.append(process)
    if _read(SECONDS_TO_START, 'its import') is None:
        _end()
        raise ImportError("env.task.check = 'math_verify': needs the extra: pip install 'ding-grpo[math]'")


def _read(seconds: float, what: str) -> Optional[Any]:
    process = _running[0]
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    line = process.stdout.readline() if ready else ''
    if not line:
        _end()
        if ready:
            raise RuntimeError(f'math-verify exited while processing {what}')
        raise TimeoutError(f'math-verify took more than {seconds:g} s for {what}')
    return json.loads(line)


@atexit.register
def _end() -> None:
    while _running:
        process = _running.pop()
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
