import signal
import threading
from types import FrameType
from typing import Any, Dict, Optional

from ding_common import parallel


class Interrupt:
    """Ctrl-C and SIGTERM set ``name``, which a run checks at a point where nothing is in progress. An exception raised
    by a signal would be mistaken for a failure of the environment that is stepping. A second Ctrl-C stops a run of one
    process at once. It does not stop a run of several processes, because ``torchrun`` sends the first signal again;
    ``torchrun`` itself kills the processes after a while."""

    def __init__(self) -> None:
        self.name: Optional[str] = None
        self._before: Dict[int, Any] = {}

    def catch(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}

    def release(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def _note(self, number: int, frame: Optional[FrameType]) -> None:
        if parallel.world_size() == 1:
            self.release()
        self.name = signal.Signals(number).name
