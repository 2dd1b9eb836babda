import os
import signal
import threading
from contextlib import contextmanager
from types import FrameType
from typing import Any, Dict, Iterator, Optional

from ding_common import parallel
from ding_grpo.compat import private


class Interrupt:
    """
    Overview:
        Ctrl-C and SIGTERM set a flag, which a run checks at a point where nothing is in progress. An exception raised
        by a signal would be mistaken for a failure of the environment that is stepping. A second Ctrl-C stops a run of
        one process at once. It does not stop a run of several processes, because ``torchrun`` sends the first signal
        again; ``torchrun`` itself kills the processes after a while.
    Interfaces:
        ``catch``, ``release``
    Property:
        ``name``: name of the received signal, None if there was none
    """

    def __init__(self) -> None:
        self.name: Optional[str] = None
        self._before: Dict[int, Any] = {}

    def catch(self) -> None:
        """Start catching the signals."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}

    def release(self) -> None:
        """Restore the previous handlers."""
        while self._before:
            signal.signal(*self._before.popitem())

    def _note(self, number: int, frame: Optional[FrameType]) -> None:
        if parallel.world_size() == 1:
            self.release()
        if private.is_running(frame):
            self.name = signal.Signals(number).name
        else:  # the run failed without restoring the handlers: deliver the signal to the previous ones
            self.release()
            os.kill(os.getpid(), number)


@contextmanager
def handlers_given_back() -> Iterator[None]:
    """
    Overview:
        Restore the handlers of Ctrl-C and SIGTERM on exit, even after an exception.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)
