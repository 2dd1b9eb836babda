"""
What the two sides of the benchmark of whole updates have in common. Each is a process of its own that makes one update
whenever it is told to, so that the sides can alternate; standard library and torch alone, since they live in different
virtual environments.
"""
import json
import os
import resource
import sys
import time
from typing import Any, Dict

LEARNING_RATE = 1e-5


def read_work(folder: str) -> Dict[str, Any]:
    """
    Overview:
        What ``make_work`` wrote.
    Arguments:
        - folder (:obj:`str`): With ``work.json`` and a model folder ``model``.
    """
    with open(os.path.join(folder, 'work.json')) as f:
        return json.load(f)


class Gate:
    """
    Overview:
        Where a process waits for the word to make its next update, and tells how long the last one took.
    """

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), 'w')  # whatever else is printed goes to stderr
        os.dup2(2, 1)
        self._since = 0.0
        self._first = True

    def wait(self) -> None:
        """Before an update."""
        if self._first:
            self._first = False
            self._tell(ready=True, memory=_memory(), versions=_versions())
        if sys.stdin.readline().strip() != 'go':
            os._exit(0)
        self._since = time.perf_counter()

    def done(self, **told: float) -> None:
        """After it."""
        seconds = time.perf_counter() - self._since
        self._tell(seconds=seconds, memory=_memory(), **told)

    def _tell(self, **told: Any) -> None:
        self._out.write(json.dumps(told) + '\n')
        self._out.flush()


def _memory() -> int:
    """Largest resident memory so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _versions() -> Dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version
    found = {}
    for name in ('torch', 'transformers', 'trl', 'DI-engine', 'ding-grpo'):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            pass
    return found
