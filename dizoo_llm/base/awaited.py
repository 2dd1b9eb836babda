"""
Scores that wait for another machine: coroutines that are awaited together. All of a process run in one event loop, in a
thread of its own, so that a client which a scorer keeps has its connections in every batch.
"""
import asyncio
import concurrent.futures
import itertools
import os
import random
import threading
import time
from typing import Any, Awaitable, Callable, List, NamedTuple, Optional, Sequence

from ding_common import describe
from ding_common.processes.tally import tally
from ding_common.retry_after import retry_after

FIRST_WAIT = 0.5  # seconds before the first retry, which double with each. Up to a half of them is left out, at random
LONGEST_WAIT = 60.0  # seconds before a retry. A server that asks for more gets none
GRACE = 5.0  # seconds for the event loop to answer
TRANSIENT = ('ConnectionError', 'TimeoutError')
Call = Callable[[], Awaitable]


class Limits(NamedTuple):
    """How scores are awaited."""
    concurrency: int  # how many at once
    seconds: Optional[float]  # for one attempt
    retries: int  # attempts after the first one
    grace: float = GRACE


COUNTS = tally('scores that wait')  # since the last report: calls, retries, failed, and seconds of waiting


def report() -> Optional[str]:
    """One line about all scores that were awaited since the last report; None if there were none."""
    told = None
    if COUNTS['calls']:
        told = (
            f"scorers that wait: {COUNTS['calls'] - COUNTS['retries']:,} scores, {COUNTS['retries']:,} retries, "
            f"{COUNTS['failed']:,} failures, {COUNTS['seconds']:,.1f} s"
        )
    COUNTS.clear()
    return told


def is_worth_retrying(error: BaseException) -> bool:
    """
    Whether an error may pass: it, or one of its causes, carries a status of 429 or from 500 to 599, or is a
    ``ConnectionError`` or a ``TimeoutError`` of Python or of a library, by the names of its classes.
    """
    for each in _causes(error):
        status = _status(each)
        if status is not None:
            return status == 429 or 500 <= status <= 599
        if any(kind.__name__.endswith(TRANSIENT) for kind in type(each).__mro__):
            return True
    return False


def _causes(error: Optional[BaseException]) -> List[BaseException]:
    found: List[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found


def _status(error: BaseException) -> Optional[int]:
    """As the errors of openai, httpx and requests, aiohttp, and urllib have it."""
    response = getattr(error, 'response', None)
    places = (error, 'status_code'), (response, 'status_code'), (error, 'status'), (error, 'code')
    found = [getattr(*place, None) for place in places]
    return next((status for status in found if isinstance(status, int) and not isinstance(status, bool)), None)


def _retry_after(error: BaseException) -> Optional[float]:
    """Seconds that the server asks for, by the header Retry-After of an error or of its cause."""
    for each in _causes(error):
        headers = getattr(getattr(each, 'response', None), 'headers', None) or getattr(each, 'headers', None)
        seconds = retry_after(headers)
        if seconds is not None:
            return seconds
    return None


class _Batch:
    """Coroutines that are awaited together."""

    def __init__(self, calls: Sequence[Call], limits: Limits) -> None:
        self._calls, self._limits, self._resumes = calls, limits, 0.0
        self._drawn = random.Random(0)  # of its own: that of Python decides what the run samples
        blocked = TimeoutError(
            'a scorer blocks the event loop, in which all wait: it must await, and not wait (asyncio.to_thread)'
        )
        self.found: List[Any] = [blocked] * len(calls)

    async def run(self) -> None:
        slots = asyncio.Semaphore(self._limits.concurrency)

        async def score(i: int) -> None:
            async with slots:
                self.found[i] = await self._score(self._calls[i])

        await asyncio.gather(*map(score, range(len(self._calls))))

    async def _score(self, call: Call) -> Any:
        for attempt in itertools.count():
            await asyncio.sleep(max(0., self._resumes - time.monotonic()))
            COUNTS['calls'] += 1
            COUNTS['retries'] += attempt > 0
            try:
                return await self._attempt(call)
            except Exception as error:  # a user's scorer may raise anything
                wait = self._wait(error, attempt)
                if wait is None:
                    COUNTS['failed'] += 1
                    return error
            await asyncio.sleep(wait)

    async def _attempt(self, call: Call) -> Any:
        task = asyncio.ensure_future(_called(call))
        try:
            await asyncio.wait({task}, timeout=self._limits.seconds)
        finally:
            if not task.done():
                task.cancel()
                task.add_done_callback(lambda task: task.cancelled() or task.exception())  # else asyncio logs it
        if task.cancelled():
            raise RuntimeError('the scorer was cancelled')
        if not task.done():
            raise TimeoutError(f'it took longer than {self._limits.seconds:g} s, seconds of the task')
        return task.result()

    def _wait(self, error: BaseException, attempt: int) -> Optional[float]:
        """Seconds until the next attempt; None for none. What a server asks for holds for all coroutines."""
        if attempt >= self._limits.retries or not is_worth_retrying(error):
            return None
        asked = _retry_after(error)
        if asked is None:
            return min(FIRST_WAIT * 2 ** attempt, LONGEST_WAIT) * self._drawn.uniform(0.5, 1)
        if asked > LONGEST_WAIT:
            return None
        self._resumes = max(self._resumes, time.monotonic() + asked)
        return asked


async def _called(call: Call) -> Any:
    try:
        return await call()
    except (SystemExit, KeyboardInterrupt) as error:  # they would end the event loop
        raise RuntimeError(describe(error)) from error


class _Loop:
    """The event loop of this process, in a thread."""
    _own: Optional['_Loop'] = None
    _lock = threading.Lock()

    @classmethod
    def own(cls) -> '_Loop':
        """That of this process, which is not the one from which it was forked."""
        with cls._lock:
            if cls._own is None or cls._own._pid != os.getpid() or cls._own._dead:
                cls._own = cls()
            return cls._own

    def __init__(self) -> None:
        self._pid, self._dead = os.getpid(), False
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name='scorers', daemon=True).start()

    def run(self, coroutine: Awaitable, seconds: Optional[float], grace: float = GRACE) -> Any:
        """Its result; None if one of the coroutines blocks the loop for ``seconds``, which is then abandoned."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            while not concurrent.futures.wait([future], seconds).done:
                beat = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop)
                if not concurrent.futures.wait([beat], max(seconds, grace)).done:
                    self._dead = True
                    return None
            return future.result()
        finally:
            future.cancel()  # if it still runs, because a signal interrupts this process, or the loop is blocked


os.register_at_fork(after_in_child=lambda: setattr(_Loop, '_lock', threading.Lock()))


def await_all(calls: Sequence[Call], limits: Limits) -> List[Any]:
    """Await together what functions return, which each attempt calls: their results, or the exceptions of their last
    attempts."""
    batch, begun = _Batch(calls, limits), time.monotonic()
    try:
        _Loop.own().run(batch.run(), limits.seconds, limits.grace)
    finally:
        COUNTS['seconds'] += time.monotonic() - begun
    return batch.found


def await_one(call: Call) -> Any:
    """Result of a coroutine, or what it raises, without limits."""
    return _Loop.own().run(_called(call), None)
