"""Plays groups of environments that step together, whose steps stay in arrays until they are part of a sample."""
import time
from typing import Any, Dict, List, NamedTuple, Optional, Protocol, Tuple

import torch
from ding.envs import BaseEnvManager
from torch import Tensor

from ding_common.processes.ding_private import environments_of
from ding_common.processes.memory import MemoryMeter, memory_advice
from ding_grpo.act.observations import rows_of, split
from ding_grpo.act.recurrent_actor import RecurrentActor
from ding_grpo.act.step_actor import StepActor
from ding_grpo.data.batch import map_tensors
from ding_grpo.data.capability import collects_as_written, group_policy

from .group import Group
from .group_player import GroupPlayer

Ended = Dict[int, Tuple[Any, Dict[str, Any]]]  # last observation and info by environment


class Rows(Protocol):
    """Environments that step together, see ``ding_grpo.envs.rows``."""

    def reset(self, seeds: Dict[int, int]) -> None:
        """Start an episode in these environments, each from its seed."""

    def observations(self, env_ids: List[int]) -> List[Any]:
        """The observations of running episodes. An environment may write its next one into the same array."""

    def step(self, env_ids: List[int], actions: List[Any]) -> Any:
        """Take a step in each of these environments. Returns ``reward`` (B, ) and ``ended``."""


def rows_together(manager: BaseEnvManager) -> Optional[Rows]:
    """The environments of a manager, None if they cannot step together."""
    if 'rows' in vars(manager):
        return manager.rows
    envs, make = environments_of(manager), getattr(manager.env_ref, 'as_rows', None)
    return None if envs is None or make is None else make(envs)


def make_player(env: BaseEnvManager, policy: NamedTuple, *others: Any) -> GroupPlayer:
    """The player for environments and a policy, see ``GroupPlayer``."""
    steps = type(group_policy(policy).actor) in (StepActor, RecurrentActor)
    in_arrays = steps and collects_as_written(policy) and rows_together(env) is not None
    return (ArrayPlayer if in_arrays else GroupPlayer)(env, policy, *others)


class _Step(NamedTuple):
    """A step of B environments; ``episode`` are the numbers of their episodes."""
    episode: List[int]
    obs: Any
    action: Tensor
    logp: Tensor
    reward: Tensor


class ArrayPlayer(GroupPlayer):
    """As ``GroupPlayer``, with the same numbers. An episode of a group is one transition, see ``fold_group``."""

    def play(self, *args: Any, **kwargs: Any) -> List[Group]:
        self._rows_of_envs, self._actor = rows_together(self._env), group_policy(self._policy).actor
        self._steps: List[_Step] = []
        self._episodes: Dict[int, int] = {}  # number of the running episode by environment
        self._begun = 0
        groups = super().play(*args, **kwargs)
        self._hand_out(groups)
        return groups

    def _reset(self, seeds: Dict[int, int], start: Optional[Dict[str, int]]) -> None:
        self._rows_of_envs.reset(seeds)
        self._episodes.update(zip(seeds, range(self._begun, self._begun + len(seeds))))
        self._begun += len(seeds)
        self._running: List[int] = []

    def _step(self, running: List[Group], clock: Dict[str, float], memory: MemoryMeter) -> Tuple[Ended, None, None]:
        start = time.perf_counter()
        if not self._running:
            keys = {i: g.row_key(self._collect_iter, i) for g in running for i in g.running}
            self._running = sorted(keys)
            self._keys = None if running[0].greedy else keys
            self._numbers = [self._episodes[i] for i in self._running]
        ids = self._running
        with memory.part('sampling'), memory_advice('sampling', f'Lower env.collector_env_num, now {len(ids)}.'):
            obs = self._actor.batch(self._rows_of_envs.observations(ids))
            action, logp = self._actor.act(obs, ids, self._keys)
            values = self._actor.to_values(action)
        sampled = time.perf_counter()
        with memory.part('scoring'):
            reward, ended = self._rows_of_envs.step(ids, values)
        self._steps.append(_Step(self._numbers, obs, action, logp, torch.from_numpy(reward)))
        if ended:
            self._running = []
        clock['sampling'] += sampled - start
        clock['scoring'] += time.perf_counter() - sampled
        return ended, None, None

    def _take(self, group: Group, ended: Ended, outputs: None, obs: None) -> None:
        """Close the episodes of the group that ended with this step; restart it if one of them ended abnormally."""
        members = [i for i in group.env_ids if i in ended]
        if self._restarts(group, {i: ended[i][1] for i in members}):
            return
        group.steps += len(group.running)
        for i in members:
            final_obs, group.last_info[i] = ended[i]
            copied = rows_of(self._actor.batch([final_obs]))[0]  # environments may write the next one into it
            told = dict(truncated=group.last_info[i]['truncated'], failed=False, done=True)
            group.episodes[i] = [dict(told, final_obs=copied, number=self._episodes[i])]
            group.running.discard(i)
            self._policy.reset([i])

    def _hand_out(self, groups: List[Group]) -> None:
        """Give each episode its steps, in their order."""
        if not groups:  # another process plays all of them
            return
        numbers = torch.tensor([number for step in self._steps for number in step.episode])
        order, count = numbers.argsort(stable=True), numbers.bincount(minlength=self._begun)
        found = {
            key: map_tensors(lambda *parts: torch.cat(parts)[order], *(getattr(step, key) for step in self._steps))
            for key in ('obs', 'action', 'logp', 'reward')
        }
        of_episode = {key: split(value, count.tolist()) for key, value in found.items()}
        for group in groups:
            for transition, in group.episodes.values():
                number = transition.pop('number')
                transition.update({key: parts[number] for key, parts in of_episode.items()}, steps=int(count[number]))
                group.return_ = sum(transition['reward'].tolist())
        self._steps = []
