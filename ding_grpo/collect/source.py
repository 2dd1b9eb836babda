"""Where the groups of a collect come from: by default, from the environments of a manager, which are stepped here."""
import random
from functools import partial
from logging import Logger
from typing import Any, Dict, List, NamedTuple, Optional, Protocol

import numpy as np
from ding.envs import BaseEnvManager

from ding_common import ConfigError, parallel
from ding_common.processes.memory import MemoryMeter
from ding_grpo.data.capability import group_policy
from ding_grpo.data.plain import plain

from .array_player import make_player
from .group import Collected, Sampled
from .problem_order import ProblemPools, make_order

COUNTERS = ('envstep', 'collect_iter', 'groups', 'started')  # of a source, which a resumed run restores


class GroupSource(Protocol):
    """Finished groups for the collector, which asks nothing else. A subclass of ``GroupCollector`` with another
    ``make_source`` takes them from elsewhere, such as from agents that drive their own rows."""
    envstep: int  # environment steps so far; of a token environment, tokens
    collect_iter: Optional[int]  # number of the last collect, None before the first

    def sample(self, target: int, train_iter: int) -> Sampled:
        """Groups from the current weights until there are ``target`` to learn from."""

    def sizes(self) -> Dict[str, float]:
        """Further metrics of a collect."""

    def state_dict(self, waits: bool = True) -> Dict[str, Any]:
        """Tensors and plain objects. ``waits``: also of what is being sampled, for which it waits."""

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore ``state_dict``."""

    def close(self) -> None:
        """End what the source has started; environments and policy belong to the collector."""


class PlayedGroups:
    """Plays groups in the environments of a manager."""

    def __init__(self, cfg: Dict, env: BaseEnvManager, policy: NamedTuple, logger: Logger) -> None:
        """``cfg``: the section ``policy.collect.collector``. ``policy``: collect mode of a ``grpo`` policy."""
        self._cfg, self._policy, self._learns = cfg, policy, group_policy(policy)
        collect, seed = self._learns.cfg.collect, self._learns.seed
        rows = self._learns.cfg.group_size + collect.extra_rows  # of a group, as they are sampled
        _check_environments(env.env_num, rows, collect)
        self._player = make_player(env, policy, seed, rows, cfg.max_restarts, logger)
        self._order = make_order(seed, getattr(env.env_ref, 'num_problems', None), collect)
        self.collect_iter: Optional[int] = None
        self.groups = 0  # in this update
        self.started = 0  # before this update
        self.envstep = 0

    def sample(self, target: int, train_iter: int) -> Sampled:
        if train_iter != self.collect_iter:
            self.started += self.groups
            self.collect_iter, self.groups = train_iter, 0
        clock, memory = dict(sampling=0., scoring=0.), MemoryMeter(self._learns.device)
        done, replaced = [], []
        while len(done) < target:
            for group in self._play(target - len(done), train_iter, clock, memory):
                group.filter(self._cfg.reward_range)
                useless = group.sample['equal'] or group.sample['filtered']
                replace = useless and len(replaced) < self._cfg.max_replacements
                (replaced if replace else done).append(group)
        sampled = Sampled(done, replaced, clock, memory.most)
        self.rate(sampled)
        return sampled

    def rate(self, sampled: Sampled) -> None:
        """Tell the order of the problems how often each was solved."""
        if not isinstance(self._order, ProblemPools):
            return
        least, rates = self._learns.cfg.collect.pools.success_from, []
        for group in sorted([*sampled.done, *sampled.replaced], key=lambda group: group.sample['group_id']):
            returns = group.returns()
            if len(returns):
                rates.append((self._problem(group.sample['group_id']), (returns >= least).float().mean().item()))
        self._order.finish(self.started + self.groups, rates)

    def sizes(self) -> Dict[str, float]:
        return self._order.sizes() if isinstance(self._order, ProblemPools) else {}

    @property
    def counters(self) -> Dict[str, Any]:
        return {name: getattr(self, name) for name in COUNTERS}

    @counters.setter
    def counters(self, counters: Dict[str, Any]) -> None:
        for name in COUNTERS:
            setattr(self, name, counters.get(name, 0))  # checkpoints of older versions lack ``started``

    def state_dict(self, waits: bool = True) -> Dict[str, Any]:
        pools = dict(pools=self._order.state_dict()) if isinstance(self._order, ProblemPools) else {}
        return {**self.counters, **pools}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.counters = state
        if isinstance(self._order, ProblemPools) and 'pools' in state:
            self._order.load_state_dict(state['pools'])

    def close(self) -> None:
        self._player.close()

    def _play(self, number: int, train_iter: int, clock: Dict[str, float], memory: MemoryMeter) -> List[Collected]:
        """Play the next ``number`` groups. Each process plays its share, and every process gets all groups."""
        numbers = [self.groups + i for i in parallel.share(number)]
        self.groups += number
        seconds = dict.fromkeys(clock, 0.)
        play = partial(self._player.play, numbers, self.collect_iter, self._problem, seconds, memory)
        groups, greedy = play(), play(greedy=True) if self._learns.needs_greedy else []
        self._player.score([group for group in [*groups, *greedy] if group.unscored], seconds, memory)
        for group, row in zip(groups, greedy):
            group.baseline = row
            group.steps += row.steps
        mine = [group.fold(self._policy, train_iter) for group in groups]
        # Environments seed the generators of Python and NumPy, so that these differ between processes here. What draws
        # from them next, such as a replay buffer, must draw the same numbers in all processes.
        groups, states = [group._asdict() for group in mine], (random.getstate(), np.random.get_state())
        shares = parallel.all_gather(plain(dict(groups=groups, seconds=seconds, memory=memory.most, random=states)))
        if parallel.rank() > 0:
            random.setstate(shares[0]['random'][0])
            np.random.set_state(shares[0]['random'][1])
        for part in clock:
            clock[part] += max(share['seconds'][part] for share in shares)  # the slowest process
            memory.most[part] = max(share['memory'].get(part, 0.) for share in shares)
        collected = [Collected(**group) for share in shares for group in share['groups']]
        self.envstep += sum(group.steps for group in collected)
        return collected

    def _problem(self, number: int) -> Optional[int]:
        """The problem of a group of this update; None if the environment draws it from its seed."""
        return None if self._order is None else self._order.problem(self.started + number)


def _check_environments(number: int, rows: int, cfg: Dict) -> None:
    """Raise a ``ConfigError`` if the groups of ``policy.collect`` cannot be played in so many environments."""
    if number % rows != 0:
        of_extra = f' + policy.collect.extra_rows = {rows}' if cfg.extra_rows else f' = {rows}'
        raise ConfigError(
            f'env.collector_env_num = {number}: must be a multiple of policy.group_size{of_extra}, because a group '
            f'uses {rows} environments at once.'
        )
    episodes, most = cfg.groups * rows, cfg.max_episodes_per_env
    if episodes > most * number:
        raise ConfigError(
            f'policy.collect.groups = {cfg.groups}: counts groups, not steps. {cfg.groups} groups x {rows} = '
            f'{episodes:,} episodes in a collect are {episodes / number:g} for each of {number} environments, more '
            f'than policy.collect.max_episodes_per_env = {most}. Lower groups, or raise max_episodes_per_env.'
        )
