"""A time limit for code that must run in this process, because it may keep a state or use a model."""
import os
import signal
import threading
import time
from contextlib import contextmanager
from types import FrameType
from typing import Iterator, Optional


@contextmanager
def time_limit(seconds: Optional[float]) -> Iterator[None]:
    """
    Overview:
        Raise an error in code that takes too long. The timer of a limit around it, such as DI-engine's of a step, \
        goes on. Operations that ignore signals, such as a loop in C, are interrupted when they end.
    Arguments:
        - seconds (:obj:`Optional[float]`): The limit; None for none. Threads other than the main one have no limit, \
            because they get no signals.
    Raises:
        - TimeoutError: If it takes longer.
    """

    def end(number: int, frame: Optional[FrameType]) -> None:
        place = '' if frame is None else f', at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}'
        raise TimeoutError(f'it took longer than seconds = {seconds:g} of the task{place}')

    outer = signal.getitimer(signal.ITIMER_REAL)[0]
    in_thread = threading.current_thread() is not threading.main_thread()
    if seconds is None or in_thread or 0 < outer <= seconds:
        yield
        return
    before, begun = signal.signal(signal.SIGALRM, end), time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if outer > 0:
            signal.setitimer(signal.ITIMER_REAL, max(outer - (time.monotonic() - begun), 1e-3))
