"""The requests for the rows of a batch, until each has its answer."""
import time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set

from ding_grpo.act.sampler import Newest
from ding_grpo.rollout import EarlyStop

from .answers import NOTHING, Answer, cut
from .server import Row, Unavailable

THREADS = 512  # requests at a time
POLL = 0.2  # seconds between two looks for newer weights
PART = 64  # tokens of a request for a row that may end in a way that the server does not know


class Requests:
    """Requests without an answer are sent again. Rows that ``early_stop`` ends have the tokens that they had then, or
    none. When ``newest`` has newer weights, those that run are ended too, and continued with them. With ``ends``,
    which a server does not know, rows are asked for in parts, and end where it says."""

    def __init__(
            self,
            pool: Any,
            rows: Sequence[Row],
            servers: Sequence[int],
            early_stop: Optional[EarlyStop] = None,
            newest: Optional[Newest] = None,
            ends: Optional[Callable[[List[int]], bool]] = None,
            part: int = PART,
            threads: int = THREADS
    ) -> None:
        """``pool``: the ``ServerPool``; ``servers``: the index of the one that each row asks."""
        self._pool, self._rows, self._servers = pool, rows, servers
        self._early_stop, self._newest, self._ends = early_stop, newest, ends
        # number of optimizer steps before each version of the weights
        self.sampled_after = None if newest is None else {pool.version: newest.steps}
        self._part, self._threads = None if ends is None else part, threads
        self._found: Dict[int, Answer] = {}
        self._begun = [NOTHING] * len(rows)  # what rows had when they were interrupted
        self._stopped: Set[int] = set()
        self._last, self._attempts = time.monotonic(), 0  # of the last answer, and attempts since then

    def answers(self) -> List[Answer]:
        """In the order of the rows."""
        with ThreadPoolExecutor(min(len(self._rows), self._threads), thread_name_prefix='engine') as threads:
            while len(self._found) < len(self._rows):
                self._ask(threads)
        return [self._found[i] for i in range(len(self._rows))]

    def _ask(self, threads: ThreadPoolExecutor) -> None:
        """Ask for all rows that have no answer."""
        missing = [i for i in range(len(self._rows)) if i not in self._found]
        rows = {i: self._rows[i].after(self._begun[i], self._pool.version, self._part) for i in missing}
        asked = {threads.submit(self._pool.servers[self._servers[i]].ask, row): i for i, row in rows.items()}
        lost: Dict[int, Unavailable] = {}
        try:
            with self._interrupting(asked, rows) as interrupted:
                for future in as_completed(asked):
                    self._take(asked[future], future, interrupted.is_set(), lost)
                    if self._early_stop is not None:
                        self._stop(asked, rows)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            self._pool.abort(list(rows.values()))
            raise
        for i in self._stopped - set(self._found):  # they were interrupted, or had a part, before they were stopped
            self._found[i] = self._begun[i]
        if interrupted.is_set():
            self._newest.take()
            self._pool.renew()
            self.sampled_after[self._pool.version] = self._newest.steps
        elif lost:
            self._pool.recover(lost, self._last, self._attempts, len(self._rows) - len(self._found))
            self._attempts += 1

    def _take(self, i: int, future: Future, interrupted: bool, lost: Dict[int, Unavailable]) -> None:
        try:
            answer = self._begun[i].then(future.result())
            self._last, self._attempts = time.monotonic(), 0
            if self._ends is not None:
                answer = cut(answer, self._ends)
            if i in self._stopped or self._is_whole(self._rows[i].params, answer.ids):
                self._found[i] = answer
            else:
                self._begun[i] = answer
        except (Unavailable, CancelledError) as error:
            partial = self._begun[i].then(getattr(error, 'partial', NOTHING))
            if i in self._stopped:
                self._found[i] = partial
            elif interrupted:
                self._begun[i] = partial
            else:
                lost[self._servers[i]] = error

    def _is_whole(self, params: Dict[str, Any], ids: List[int]) -> bool:
        """Whether a row has come to its end."""
        if self._ends is None or len(ids) == params['max_tokens']:
            return True
        return ids[-1] in params.get('stop_token_ids', ()) or self._ends(ids)

    def _stop(self, asked: Dict[Future, int], rows: Dict[int, Row]) -> None:
        """End the rows that do not count any more."""
        now = self._early_stop.after_row([i for i in self._found if i not in self._stopped])
        self._stopped.update(now)
        begun = set(now) - {i for future, i in asked.items() if i in now and future.cancel()}
        self._pool.abort([rows[i] for i in begun])

    @contextmanager
    def _interrupting(self, asked: Dict[Future, int], rows: Dict[int, Row]) -> Iterator[Event]:
        """Context in which requests are ended as soon as there are newer weights; it gives whether there are."""
        due, ended = Event(), Event()

        def watch() -> None:
            while not ended.wait(POLL):  # again and again: a request may reach its server after it was ended
                if self._newest.has_newer:
                    due.set()
                    for future in asked:
                        future.cancel()
                    self._pool.abort(list(rows.values()))

        thread = Thread(target=watch, name='newer weights', daemon=True)
        if self._newest is not None:
            thread.start()
        try:
            yield due
        finally:
            ended.set()
            if self._newest is not None:
                thread.join()
