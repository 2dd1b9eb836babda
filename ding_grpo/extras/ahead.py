"""
Samples the groups of the next updates in another process, while the policy learns from those of this one.

The process is forked at the first request, so that it has the environments, the policy and the tasks without building
them again. Weights are in memory that both processes share; it copies them before the groups of an update. Threads of
torch do not survive a fork, so the process computes with one thread.
"""
import mmap
import multiprocessing
import pickle
import signal
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from logging import Logger
from multiprocessing.connection import Connection
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from ding.envs import AsyncSubprocessEnvManager, BaseEnvManager
from torch import Tensor

from ding_common import ConfigError, PeerError
from ding_common.processes.tally import add_tallies, take_tallies
from ding_grpo.collect.group import Collected, Sampled
from ding_grpo.collect.source import PlayedGroups
from ding_grpo.data.plain import plain


class Ahead(NamedTuple):
    """What was sampled ahead: for which update, the groups, and the counters of the collector after it."""
    train_iter: int
    sampled: Sampled
    counters: Dict[str, int]

    def state_dict(self) -> Dict[str, Any]:
        """As tensors and plain objects."""
        groups = {
            name: [plain(group._asdict()) for group in getattr(self.sampled, name)]
            for name in ('done', 'replaced')
        }
        return dict(self._asdict(), sampled=groups)

    @classmethod
    def of_state(cls, state: Dict[str, Any]) -> 'Ahead':
        groups = {name: [Collected(**group) for group in found] for name, found in state['sampled'].items()}
        return cls(**dict(state, sampled=Sampled(clock={}, memory={}, **groups)))


class AheadGroups(PlayedGroups):
    """Samples the groups of up to ``policy.collect.max_staleness`` updates ahead of them, in a process that has a copy
    of all this. It samples them in turn, those of each update with the newest weights at its beginning."""

    def __init__(self, cfg: Dict, env: BaseEnvManager, policy: NamedTuple, logger: Logger) -> None:
        elsewhere = dict(subprocess=isinstance(env, AsyncSubprocessEnvManager), vector='rows' in vars(env))
        for kind in (name for name, found in elsewhere.items() if found):
            raise ConfigError(
                f"create_config.env_manager.type = {kind!r}: must be 'base' with policy.collect.max_staleness > 0, "
                'whose environments are in the process that samples.'
            )
        super().__init__(cfg, env, policy, logger)
        collect = self._learns.cfg.collect
        self._most = collect.max_staleness
        self._in_flight = collect.in_flight
        self._repeats = collect.engine is None  # whether a row that is sampled again is the same
        self._process: Optional[AheadProcess] = None
        self._due: List[int] = []  # the updates for which the process samples groups, in order
        self._found: List[Ahead] = []  # what it has answered, for updates to come

    def sample(self, target: int, train_iter: int) -> Sampled:
        # With an engine, requests that wait begin with newer weights. A run without one repeats exactly: its requests
        # begin with the weights of their time.
        if self._process is not None and not self._repeats:
            self._process.put(train_iter, self._learns.age[1])
        found = self._take(train_iter)
        if found is None:
            sampled = super().sample(target, train_iter)
        else:
            sampled, self.counters = found.sampled, found.counters
            self.rate(sampled)
        self._request(target, train_iter)
        return sampled

    def state_dict(self, waits: bool = True) -> Dict[str, Any]:
        """``waits``: also of what was sampled ahead. It waits for what is being sampled, which a resumed run would
        sample with other weights; with an engine, whose runs are not repeated exactly, it does not."""
        if waits:
            self._receive(None if self._repeats else 0)
        ahead = dict(ahead=[found.state_dict() for found in self._found]) if waits and self._found else {}
        return {**super().state_dict(), **ahead}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        super().load_state_dict(state)
        found = state.get('ahead', [])
        self._found = [Ahead.of_state(each) for each in ([found] if isinstance(found, dict) else found)]

    def close(self) -> None:
        super().close()
        if self._process is not None:
            self._process.close()

    def _request(self, target: int, train_iter: int) -> None:
        """Have the groups of the updates after this one sampled."""
        learns = self._learns
        if self._process is None:
            learns.actor.prepare()
            self._process = AheadProcess([p for p in learns.whole_model.parameters() if p.requires_grad], self._answer)
        if not self._due:
            self._process.put(train_iter, learns.age[1])
        known = [*(found.train_iter for found in self._found), *self._due]
        for update in range(train_iter + 1, train_iter + 1 + self._most):
            if update not in known:
                self._process.request((target, update))
                self._due.append(update)

    def _answer(self, request: Tuple, process: 'AheadProcess') -> Ahead:
        """The answer to a request, in the other process, with the weights that it has taken."""
        for found in self._found:  # at the first request: of a resumed run
            self.counters = found.counters
            self.rate(found.sampled)
        self._found = []
        if self._in_flight:
            self._learns.actor.sampler.newest = process
        target, train_iter = request
        updates, of_group = process.updates, {} if self._in_flight else dict(sampled_after=process.steps)
        sampled = super().sample(target, train_iter)
        for group in [*sampled.done, *sampled.replaced]:
            group.sample.update(of_group, staleness=train_iter - updates)
        return Ahead(train_iter, sampled, self.counters)

    def _take(self, train_iter: int) -> Optional[Ahead]:
        """Wait for what was sampled for this update; None if nothing was. The time of sampling is that of waiting."""
        start = time.perf_counter()
        self._receive(sum(update <= train_iter for update in self._due))
        found = [found for found in self._found if found.train_iter == train_iter]
        self._found = [found for found in self._found if found.train_iter > train_iter]
        if not found:
            return None
        waited = dict(sampling=time.perf_counter() - start, scoring=0.)
        return found[0]._replace(sampled=found[0].sampled._replace(clock=waited))

    def _receive(self, number: Optional[int]) -> None:
        """Wait for so many answers, None for all, and take those that have come."""
        number = len(self._due) if number is None else number
        while self._due and (number > 0 or self._process.has_answered):
            number -= 1
            del self._due[0]  # also if this raises: there is no second answer
            self._found.append(self._process.answer())


class AheadProcess:
    """A process that answers requests in turn, each with the newest weights at its beginning."""

    def __init__(self, weights: List[Tensor], respond: Callable[..., Any]) -> None:
        """``weights`` change in place, on the CPU; ``respond`` answers a request, in the other process, given also this
        object there."""
        self._weights = weights
        self._shared = [_shared_like(w) for w in weights]
        self._age = _shared_like(torch.zeros(2, dtype=torch.long))
        self.updates = self.steps = -1  # in the other process, numbers before the weights that it has
        context = multiprocessing.get_context('fork')
        self._lock = context.Lock()  # of what is shared
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=self._serve, args=(theirs, respond), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', DeprecationWarning)  # of fork with threads: see the module's docstring
            self._process.start()
        theirs.close()

    @torch.no_grad()
    def put(self, updates: int, steps: int) -> None:
        """The weights of now, after so many updates and optimizer steps, are those of what begins from now on."""
        with self._lock:
            for shared, weight in zip(self._shared, self._weights):
                shared.copy_(weight)
            self._age.copy_(torch.tensor([updates, steps]))

    @property
    def has_newer(self) -> bool:
        """In the other process."""
        return self._age[1].item() != self.steps

    @torch.no_grad()
    def take(self) -> None:
        """Take the newest weights, in the other process."""
        with self._lock:
            for weight, shared in zip(self._weights, self._shared):
                weight.copy_(shared)
            self.updates, self.steps = self._age.tolist()

    def request(self, request: Any) -> None:
        """Send a request, after the first ``put``."""
        self._connection.send_bytes(_packed(request))

    @property
    def has_answered(self) -> bool:
        """Whether ``answer`` does not wait."""
        return self._connection.poll()

    def answer(self) -> Any:
        """Wait for the next answer. Raises what ``respond`` raised, or ``PeerError`` if the process has ended."""
        try:
            found, counted = pickle.loads(self._connection.recv_bytes())  # from a copy of this process
        except (EOFError, ConnectionError) as error:
            self._process.join(5)
            raise PeerError(
                f'the process that samples ahead (policy.collect.max_staleness > 0) has ended with exit code '
                f'{self._process.exitcode}; -9 is a kill, mostly for lack of memory'
            ) from error
        add_tallies(counted)
        answer, error, told = found
        if error is not None:
            raise error from RuntimeError(f'in the process that samples ahead:\n{told}')
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()

    @torch.no_grad()
    def _serve(self, connection: Connection, respond: Callable[..., Any]) -> None:
        self._connection.close()  # so that the end of the other process is seen here
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        torch.set_num_threads(1)
        answers = ThreadPoolExecutor(1)  # an answer waits there until the other process reads it
        try:
            while True:
                request = pickle.loads(connection.recv_bytes())
                self.take()
                answers.submit(connection.send_bytes, _packed((_outcome(respond, request, self), take_tallies())))
        except (EOFError, ConnectionError):  # the other process has ended
            pass


def _packed(thing: Any) -> bytes:
    return pickle.dumps(thing)  # Connection.send would pass tensors as open files


def _outcome(respond: Callable[..., Any], *request: Any) -> Tuple[Any, Optional[Exception], str]:
    """The answer, or the error and where it was raised."""
    try:
        return respond(*request), None, ''
    except Exception as error:  # raised again in the process that asked
        told = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # an exception whose constructor takes other arguments
            error = RuntimeError(str(error))
        return None, error, told


def _shared_like(tensor: Tensor) -> Tensor:
    """A tensor in anonymous memory that forked processes share. Files in /dev/shm are limited in many containers."""
    size = tensor.numel() * tensor.element_size()
    return torch.frombuffer(mmap.mmap(-1, max(size, 1)), dtype=tensor.dtype, count=tensor.numel()).view(tensor.shape)
