"""A time limit for code that must run in this process, because it may keep a state or use a model."""
import signal
import threading
import time
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Iterator, Optional


class _Interrupt(BaseException):
    """Raised in the code that takes too long. It is no ``Exception``, so that ``except Exception`` lets it pass."""


@contextmanager
def time_limit(seconds: Optional[float], name: str = 'seconds of the task') -> Iterator[None]:
    """
    Raise a ``TimeoutError`` in code that takes too long, and once a second in code that catches it; its traceback ends
    where the code was interrupted. ``name`` is what sets the limit. The timer of a limit around it, such as DI-engine's
    of a step, runs on. What ignores signals, such as a loop in C, is interrupted when it ends. Only the main thread,
    which gets signals, has a limit.
    """

    def end(number: int, frame: Optional[FrameType]) -> None:
        raise _Interrupt(None if frame is None else TracebackType(None, frame, frame.f_lasti, frame.f_lineno))

    outer, interval = signal.getitimer(signal.ITIMER_REAL)
    in_thread = threading.current_thread() is not threading.main_thread()
    if seconds is None or in_thread or 0 < outer <= seconds:
        yield
        return
    before, begun = signal.signal(signal.SIGALRM, end), time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _Interrupt as interrupt:
        raise TimeoutError(f'it took longer than {seconds:g} s, {name}').with_traceback(interrupt.args[0]) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # again: the signal may have come before the first one
        signal.signal(signal.SIGALRM, before)
        if outer > 0:
            signal.setitimer(signal.ITIMER_REAL, max(outer - (time.monotonic() - begun), 1e-3), interval)
