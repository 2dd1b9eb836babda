"""Environments that step together, for loops that read arrays: without DI-engine's layers, and with their numbers."""
import copy
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import gymnasium
import numpy as np
from ding.envs.common import affine_transform
from gymnasium.spaces import Box
from gymnasium.vector import AsyncVectorEnv, VectorEnv

from ding_common import TaskError, environment_errors
from ding_common.config.check import MOST_FLOAT32


class Stepped(NamedTuple):
    """Result of a step of B environments. ``ended``: last observation and info by environment, where an episode ended.
    The info is that of the environment, with ``truncated``, ``exact_reward`` and ``eval_episode_return`` of
    ``GymnasiumEnv``."""
    reward: np.ndarray  # (B, ) float32
    ended: Dict[int, Tuple[Any, Dict[str, Any]]]


class _Rows:
    """``reset``, ``observations`` and ``step`` are those of ``Rows`` in ``ding_grpo/collect/array_player.py``."""

    def __init__(self, name: str, space: gymnasium.Space, act_scale: bool, rew_clip: bool) -> None:
        """Name and action space of one environment; ``act_scale`` and ``rew_clip`` are keys of ``GymnasiumEnv``."""
        self._name, self._rew_clip = name, rew_clip
        self._is_box = isinstance(space, Box)
        self._bounds = (space.low, space.high) if act_scale else None
        self._sums: Dict[int, float] = {}  # of the rewards so far

    def _in_bounds(self, actions: List[Any]) -> List[Any]:
        if self._is_box and not np.isfinite(actions).all():
            raise not_finite(self._name, next(action for action in actions if not np.isfinite(action).all()))
        if self._bounds is None:
            return actions
        return [affine_transform(action, min_val=self._bounds[0], max_val=self._bounds[1]) for action in actions]

    def _checked(self, rewards: np.ndarray) -> np.ndarray:
        wrong = ~(np.abs(rewards) <= MOST_FLOAT32)  # also NaN
        if wrong.any():
            raise no_reward(self._name, rewards[wrong][0])
        return np.maximum(rewards, -10 if self._rew_clip else -np.inf).astype(np.float32)

    def _ending(self, env_id: int, info: Dict[str, Any], terminated: bool, truncated: bool) -> Dict[str, Any]:
        """The info of an episode's last step, with what ``TellTruncation`` and DI-engine add."""
        total = self._sums[env_id]
        return dict(info, **told(terminated, truncated, total), eval_episode_return=np.array([total], np.float32))


class Singles(_Rows):
    """Single environments of gymnasium in this process, of which only those that are asked for step."""

    def __init__(self, envs: List[gymnasium.Env], act_scale: bool = False, rew_clip: bool = False) -> None:
        super().__init__(_name_of(envs[0]), envs[0].action_space, act_scale, rew_clip)
        self._envs = envs
        self._obs: Dict[int, Any] = {}

    def reset(self, seeds: Dict[int, int]) -> None:
        for i, seed in seeds.items():
            seed_as_di_engine(self._envs[i], seed)
            with environment_errors('reset'):
                self._obs[i], _ = self._envs[i].reset(seed=seed)
            self._sums[i] = 0.0
        np.random.seed(seed)

    def observations(self, env_ids: List[int]) -> List[Any]:
        return [self._obs[i] for i in env_ids]

    def step(self, env_ids: List[int], actions: List[Any]) -> Stepped:
        rewards, ended = [], {}
        with environment_errors('step'):
            for i, action in zip(env_ids, self._in_bounds(actions)):
                self._obs[i], reward, terminated, truncated, info = self._envs[i].step(action)
                rewards.append(float(reward))
                self._sums[i] += rewards[-1]
                if terminated or truncated or info.get('abnormal', False):
                    ended[i] = self._obs[i], self._ending(i, info, terminated, truncated)
        return Stepped(self._checked(np.array(rewards)), ended)


class Vector(_Rows):
    """A vector environment of gymnasium, all of whose environments step at once. Those whose episode has ended begin
    another one, whose steps are ignored, until they are reset."""

    def __init__(self, env: VectorEnv, act_scale: bool = False, rew_clip: bool = False) -> None:
        space = env.single_action_space
        super().__init__(_name_of(env), space, act_scale, rew_clip)
        self._env, self._is_broken = env, False
        self._idle = np.zeros(space.shape, space.dtype) + getattr(space, 'start', 0)
        if isinstance(space, Box):
            self._idle = np.clip(self._idle, space.low, space.high)

    def reset(self, seeds: Dict[int, int]) -> None:
        self._begin([*seeds], [seeds.get(i) for i in range(self._env.num_envs)])
        self._sums.update(dict.fromkeys(seeds, 0.0))
        np.random.seed([*seeds.values()][-1])  # this process, as ``Singles`` leaves it

    def _begin(self, env_ids: List[int], seeds: List[Optional[int]]) -> None:
        mask = np.zeros(self._env.num_envs, np.bool_)
        mask[env_ids] = True
        with self._calling('reset'):
            self._obs, _ = self._env.reset(seed=seeds, options=dict(reset_mask=mask))

    @contextmanager
    def _calling(self, what: str) -> Iterator[None]:
        self._is_broken = True  # unless the call returns
        with environment_errors(what):
            yield
        self._is_broken = False

    def observations(self, env_ids: List[int]) -> List[Any]:
        return [_row(self._obs, i) for i in env_ids]

    def step(self, env_ids: List[int], actions: List[Any]) -> Stepped:
        of_all = [self._idle] * self._env.num_envs
        for i, action in zip(env_ids, self._in_bounds(actions)):
            of_all[i] = action
        with self._calling('step'):
            self._obs, rewards, terminated, truncated, infos = self._env.step(np.stack(of_all))
        rewards = rewards.astype(np.float64)
        abnormal = np.asarray(infos.get('abnormal', False)) & infos.get('_abnormal', False)
        over, ended = terminated | truncated | abnormal.astype(bool), {}
        for i in env_ids:
            self._sums[i] += float(rewards[i])
            if over[i]:
                info = {name: _row(x, i) for name, x in infos.items() if _row(infos.get(f'_{name}'), i)}
                ended[i] = copy.deepcopy(_row(self._obs, i)), self._ending(i, info, terminated[i], truncated[i])
        if over.any():
            self._begin(np.flatnonzero(over).tolist(), [None] * len(over))
        return Stepped(self._checked(rewards[env_ids]), ended)

    def close(self) -> None:
        """End the environments. After a call that failed, their processes are ended and not asked, for their answers
        would be waited for."""
        ending = dict(terminate=self._is_broken) if isinstance(self._env, AsyncVectorEnv) else {}
        try:
            self._env.close(**ending)
        except (OSError, EOFError):  # a process has died
            for process in getattr(self._env, 'processes', ()):
                process.terminate()


def not_finite(name: str, action: Any) -> TaskError:
    return TaskError(f'{name} got the action {action!r} from the policy, whose weights or outputs are NaN')


def no_reward(name: str, reward: Any) -> TaskError:
    return TaskError(f'{name} gave the reward {reward!r}, must be a finite number (float32); scale it')


def told(terminated: bool, truncated: bool, rewards: float) -> Dict[str, Any]:
    """Added to the info of a step, given the sum of the episode's rewards so far."""
    return dict(truncated=bool(truncated and not terminated), exact_reward=rewards)


def seed_as_di_engine(env: gymnasium.Env, seed: int) -> None:
    """Seed what DI-engine's environments seed before a start, beside the environment's own generator."""
    np.random.seed(seed)
    env.action_space.seed(seed)


def _name_of(env: Any) -> str:
    return getattr(env.spec, 'id', type(env).__name__)


def _row(value: Any, number: int) -> Any:
    """One environment's part of what a vector environment gives."""
    if isinstance(value, dict):
        return {name: _row(part, number) for name, part in value.items()}
    return None if value is None else value[number]
