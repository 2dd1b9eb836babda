"""Threads in which agents call what does not await, such as a client of OpenAI's that is not asynchronous."""
import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Set


class Threads(ThreadPoolExecutor):
    """
    A thread for each call. asyncio's own executor has few, and calls of some rows wait in them for the model until all
    rows have asked: the others would never get to ask. Threads that hang do not keep the process from its end.
    """

    def __init__(self) -> None:
        super().__init__()
        self._running: Set[threading.Thread] = set()

    def submit(self, function: Callable, /, *given: Any, **named: Any) -> Future:
        future: Future = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*given, **named))
                except BaseException as error:  # an agent may raise anything
                    future.set_exception(error)
            self._running.discard(thread)

        thread = threading.Thread(target=work, name='agent', daemon=True)
        self._running.add(thread)
        thread.start()
        return future

    async def left(self, seconds: float) -> int:
        """How many still run after these seconds, or as soon as there are none."""
        end = time.monotonic() + seconds
        while self._running and time.monotonic() < end:
            await asyncio.sleep(0.02)
        return len(self._running)
