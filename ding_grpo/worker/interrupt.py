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
        Ctrl-C and SIGTERM set a flag, on which a run acts where nothing is half done. An exception from a signal would
        be taken for a failure of whatever environment happens to step. A second Ctrl-C ends at once, but not of several
        processes: ``torchrun`` passes on the first one again, and ends them itself after a while.
    Interfaces:
        ``catch``, ``release``
    Property:
        ``name``: of the signal that came, None without one
    """

    def __init__(self) -> None:
        self.name: Optional[str] = None
        self._before: Dict[int, Any] = {}

    def catch(self) -> None:
        """From now on."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}

    def release(self) -> None:
        """Give the signals back to whoever had them."""
        while self._before:
            signal.signal(*self._before.popitem())

    def _note(self, number: int, frame: Optional[FrameType]) -> None:
        if parallel.world_size() == 1:
            self.release()
        if private.is_running(frame):
            self.name = signal.Signals(number).name
        else:  # the run has failed and left its handlers behind: the signal is for whatever runs now
            self.release()
            os.kill(os.getpid(), number)


@contextmanager
def handlers_given_back() -> Iterator[None]:
    """
    Overview:
        Whatever happens within, Ctrl-C and SIGTERM are then for whom they were before.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)
