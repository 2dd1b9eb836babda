"""
Samples the groups of the next update in another process, while the policy learns from those of this one.

The process is forked at the first request, so that it has the environments, the policy and the tasks without building
them again. Weights are in memory that both processes share; a request copies them. Threads of torch do not survive a
fork, so the process computes with one thread.
"""
import mmap
import multiprocessing
import pickle
import signal
import time
import traceback
import warnings
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
    """Samples the groups of one update ahead of it, in a process that has a copy of all this."""

    def __init__(self, cfg: Dict, env: BaseEnvManager, policy: NamedTuple, logger: Logger) -> None:
        elsewhere = dict(subprocess=isinstance(env, AsyncSubprocessEnvManager), vector='rows' in vars(env))
        for kind in (name for name, found in elsewhere.items() if found):
            raise ConfigError(
                f"create_config.env_manager.type = {kind!r}: must be 'base' with policy.collect.stale = 1, whose "
                'environments are in the process that samples.'
            )
        super().__init__(cfg, env, policy, logger)
        self._process: Optional[AheadProcess] = None
        self._due = False  # whether the process has a request that is not answered yet
        self._found: Optional[Ahead] = None

    def sample(self, target: int, train_iter: int, policy_kwargs: Dict) -> Sampled:
        found = self._take(train_iter)
        if found is None:
            sampled = super().sample(target, train_iter, policy_kwargs)
        else:
            sampled, self.counters = found.sampled, found.counters
            self.rate(sampled)
        self._begin((super().state_dict(), self._learns.age[1], target, train_iter + 1, policy_kwargs))
        return sampled

    def state_dict(self, waits: bool = True) -> Dict[str, Any]:
        if waits:
            self._receive()
        ahead = {} if not waits or self._found is None else dict(ahead=self._found.state_dict())
        return {**super().state_dict(), **ahead}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._found = Ahead.of_state(state['ahead']) if 'ahead' in state else None

    def close(self) -> None:
        super().close()
        if self._process is not None:
            self._process.close()

    def _begin(self, request: Tuple) -> None:
        """Begin to sample, with the weights of now."""
        if self._process is None:
            weights = [p for p in self._learns.whole_model.parameters() if p.requires_grad]
            self._process = AheadProcess(weights, self._sample_ahead)
        self._process.request(request)
        self._due = True

    def _sample_ahead(self, request: Tuple) -> Ahead:
        """The answer to a request, in the other process."""
        state, steps, target, train_iter, policy_kwargs = request
        super().load_state_dict(state)
        sampled = self.sample_unrated(target, train_iter, policy_kwargs)
        for group in [*sampled.done, *sampled.replaced]:
            group.sample.update(sampled_after=steps, staleness=1)
        return Ahead(train_iter, sampled, self.counters)

    def _take(self, train_iter: int) -> Optional[Ahead]:
        """Wait for what was sampled for this update; None if nothing was. The time of sampling is that of waiting."""
        start = time.perf_counter()
        self._receive()
        found, self._found = self._found, None
        if found is None or found.train_iter != train_iter:
            return None
        waited = dict(sampling=time.perf_counter() - start, scoring=0.)
        return found._replace(sampled=found.sampled._replace(clock=waited))

    def _receive(self) -> None:
        if self._due:
            self._due = False  # also if this raises: there is no second answer
            self._found = self._process.answer()


class AheadProcess:
    """A process that answers one request at a time with the weights of the moment of the request."""

    def __init__(self, weights: List[Tensor], respond: Callable[[Any], Any]) -> None:
        """``weights`` change between requests, on the CPU; ``respond`` answers a request, in the other process."""
        self._weights = weights
        self._shared = [_shared_like(w) for w in weights]
        context = multiprocessing.get_context('fork')
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=self._serve, args=(theirs, respond), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', DeprecationWarning)  # of fork with threads: see the module's docstring
            self._process.start()
        theirs.close()

    @torch.no_grad()
    def request(self, request: Any) -> None:
        """Send a request, after the answer to the one before."""
        for shared, weight in zip(self._shared, self._weights):
            shared.copy_(weight)
        self._send(self._connection, request)

    def answer(self) -> Any:
        """Wait for the answer. Raises what ``respond`` raised, or ``PeerError`` if the process has ended."""
        try:
            found, counted = pickle.loads(self._connection.recv_bytes())  # from a copy of this process
        except (EOFError, ConnectionError) as error:
            self._process.join(5)
            raise PeerError(
                f'the process that samples ahead (policy.collect.stale = 1) has ended with exit code '
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
    def _serve(self, connection: Connection, respond: Callable[[Any], Any]) -> None:
        self._connection.close()  # so that the end of the other process is seen here
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        torch.set_num_threads(1)
        try:
            while True:
                request = pickle.loads(connection.recv_bytes())
                for weight, shared in zip(self._weights, self._shared):
                    weight.copy_(shared)
                self._send(connection, (_outcome(respond, request), take_tallies()))
        except (EOFError, ConnectionError):  # the other process has ended
            pass

    @staticmethod
    def _send(connection: Connection, thing: Any) -> None:
        connection.send_bytes(pickle.dumps(thing))  # Connection.send would pass tensors as open files


def _outcome(respond: Callable[[Any], Any], request: Any) -> Tuple[Any, Optional[Exception], str]:
    """The answer, or the error and where it was raised."""
    try:
        return respond(request), None, ''
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
