"""Plays the groups of a collect in the environments of a manager."""
import time
from logging import Logger
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
from ding.envs import BaseEnvManager
from ding.torch_utils import to_ndarray

from ding_common import ConfigError, unwrap_task_error
from ding_common.processes.memory import MemoryMeter
from ding_grpo.data.capability import group_policy

from .deferred import Deferred
from .group import Group


def start_seed(seed: int, collect_iter: int, group: int, restarts: int) -> int:
    """The seed of the first environment of a group. A function of these four, so that a resumed run gets the same
    starts as an uninterrupted one, and a restarted group another start than the one that failed."""
    state = np.random.SeedSequence([seed, collect_iter, group, restarts]).generate_state(1)[0]
    # 30 bits and one above them. Evaluators use smaller seeds, so that training and evaluation share no start.
    return 2 ** 30 + int(state >> 2)


class GroupPlayer:
    """Plays groups to their end. All environments of the running groups step together."""

    def __init__(
            self, env: BaseEnvManager, policy: NamedTuple, seed: int, rows: int, max_restarts: int, logger: Logger
    ) -> None:
        self._env, self._policy, self._seed, self._rows = env, policy, seed, rows
        self._max_restarts, self._logger = max_restarts, logger
        self._shared_start = group_policy(policy).cfg.collect.shared_start
        self._deferred = Deferred(env)

    def close(self) -> None:
        self._deferred.close()

    def play(
            self,
            numbers: List[int],
            collect_iter: int,
            problem: Callable[[int], Optional[int]],
            clock: Dict[str, float],
            memory: MemoryMeter,
            greedy: bool = False
    ) -> List[Group]:
        """Play the groups with these numbers, or the greedy row of each. ``problem`` maps a number to the group's
        problem, or to None. Adds to the seconds in ``clock``, and measures memory. Returns the finished groups by
        number, whichever finished first."""
        self._collect_iter, self._clock = collect_iter, clock
        size, ids, waiting = 1 if greedy else self._rows, list(range(self._env.env_num)), list(numbers)
        free, running, finished = [ids[i:i + size] for i in ids[::size]], [], []
        while waiting or running:
            while free and waiting:
                number = waiting.pop(0)
                running.append(Group(number, free.pop(0), problem(number), greedy))
                self._begin(running[-1])
            timesteps, outputs, obs = self._step(running, clock, memory)
            for group in list(running):
                self._take(group, timesteps, outputs, obs)
                if not group.running:
                    running.remove(group)
                    free.append(group.env_ids)
                    finished.append(group)
        return sorted(finished, key=lambda group: group.number)

    def _begin(self, group: Group) -> None:
        group.begin()
        seed = start_seed(self._seed, self._collect_iter, group.number, group.restarts)
        seeds = {i: seed + (0 if self._shared_start else row) for row, i in enumerate(group.env_ids)}
        start = time.perf_counter()
        self._reset(seeds, None if group.problem is None else dict(index=group.problem))
        self._clock['scoring'] += time.perf_counter() - start
        self._policy.reset(group.env_ids)

    def _reset(self, seeds: Dict[int, int], start: Optional[Dict[str, int]]) -> None:
        # Without dynamic_seed=False on every call, environments add a random number to the seed.
        self._env.seed(seeds, dynamic_seed=False)
        self._env.reset({i: self._deferred.start(start) for i in seeds})

    def _step(self, running: List[Group], clock: Dict[str, float], memory: MemoryMeter) -> Tuple[Dict, Dict, Dict]:
        start = time.perf_counter()
        keys = {i: g.row_key(self._collect_iter, i) for g in running for i in sorted(g.running)}
        obs = {i: o for i, o in self._env.ready_obs.items() if i in keys}
        with memory.part('sampling'):
            outputs = self._policy.forward(obs, row_keys=keys, greedy=running[0].greedy)
        sampled = time.perf_counter()
        actions = to_ndarray({i: o['action'] for i, o in outputs.items() if not o.get('dropped', False)})
        try:
            with memory.part('scoring'):
                timesteps = self._env.step(actions)
        except Exception as error:  # an environment may raise anything
            unwrap_task_error(error)
        if len(timesteps) < len(actions):
            raise ConfigError(
                "create_config.env_manager.type: must be 'base' or 'subprocess'. This one returns before all "
                'environments have stepped, but the environments of a group step together.'
            )
        clock['sampling'] += sampled - start
        clock['scoring'] += time.perf_counter() - sampled
        return timesteps, outputs, obs

    def _take(self, group: Group, timesteps: Dict, outputs: Dict, obs: Dict) -> None:
        """Append each environment's step to its episode; restart the group if one of them ended abnormally."""
        members = [i for i in group.env_ids if i in timesteps]
        if self._restarts(group, {i: timesteps[i].info for i in members}):
            return
        for i in group.env_ids:
            if i in outputs and i not in timesteps:  # the policy has marked it as dropped
                group.drop(i, outputs[i])
                self._policy.reset([i])
        for i in members:
            step = timesteps[i]
            if self._deferred.is_unscored(step):
                group.unscored[i] = obs[i], outputs[i], step
            else:
                group.append(self._policy, i, obs[i], outputs[i], step)
            group.steps += step.info.get('taken', 1)
            if step.done:
                group.running.discard(i)
                self._policy.reset([i])

    def _restarts(self, group: Group, infos: Dict[int, Dict[str, Any]]) -> bool:
        """Begin a group again if one of its environments, with these infos, has ended abnormally."""
        # A completion that could not be scored is also marked abnormal, for DI-engine's collectors. Here only its row
        # is dropped, not the group.
        abnormal = [i for i, info in infos.items() if info.get('abnormal', False) and info.get('failed') is None]
        if not abnormal:
            return False
        group.restarts += 1
        if group.restarts > self._max_restarts:
            raise RuntimeError(
                f'environment {abnormal[0]} ended abnormally {group.restarts} times in group {group.number}, more than '
                f'policy.collect.collector.max_restarts = {self._max_restarts}: {infos[abnormal[0]]}'
            )
        self._logger.warning(f'environments {abnormal} ended abnormally: restarting group {group.number}')
        self._begin(group)
        return True

    def score(self, groups: List[Group], clock: Dict[str, float], memory: MemoryMeter) -> None:
        """Score all episodes that their environments left unscored at once."""
        start = time.perf_counter()
        rows = [(g, i) for g in sorted(groups, key=lambda g: g.number) for i in g.env_ids if i in g.unscored]
        with memory.part('scoring'):
            steps = self._deferred.score([(i, group.unscored[i][-1]) for group, i in rows])
        for (group, i), step in zip(rows, steps):
            obs, output, _ = group.unscored[i]
            group.append(self._policy, i, obs, output, step)
        clock['scoring'] += time.perf_counter() - start
