import os
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple

import gymnasium
import numpy as np
from ding.envs import BaseEnvManager, BaseEnvTimestep
from ding.envs.env_manager.base_env_manager import EnvState
from ding.torch_utils import to_ndarray
from ding.utils import ENV_MANAGER_REGISTRY
from easydict import EasyDict
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from ding_common import ConfigError, config_errors, import_name
from ding_common.processes.env_manager import stand_alone

from .gymnasium_env import GymnasiumEnv, made
from .rows import Vector, seed_as_di_engine

IGNORED = ('step_timeout', 'reset_timeout', 'max_retry', 'retry_type')  # keys of other managers


@ENV_MANAGER_REGISTRY.register('vector')
class VectorManager(BaseEnvManager):
    """Environments of the type ``gymnasium_env`` as one vector environment of gymnasium, which steps all of them at
    once. A collector of groups reads its arrays; others, such as evaluators, use it as any manager."""
    config = dict(
        BaseEnvManager.config,
        # (str) 'async': gymnasium's AsyncVectorEnv, a process for each environment; 'sync': its SyncVectorEnv;
        # 'vector_entry_point': the vector environment that the environment itself provides. Or 'module:function', which
        # gets the number of environments and env.env_kwargs, and returns a gymnasium.vector.VectorEnv. Each must be
        # able to start single environments, from a seed for each: AutoresetMode.DISABLED with the option reset_mask.
        mode='async',
    )

    def __init__(self, env_fn: List[Callable], cfg: EasyDict) -> None:
        super().__init__(env_fn, cfg)
        if not isinstance(self._env_ref, GymnasiumEnv) or not self._env_ref.is_plain:
            raise ConfigError(
                "create_config.env_manager.type = 'vector': needs the environment type 'gymnasium_env' without "
                'wrappers of DI-engine (env.env_wrapper). Put those of gymnasium in env.gymnasium_wrappers.'
            )
        if not isinstance(self._action_space, (Box, Discrete, MultiDiscrete)):
            raise ConfigError(
                f"create_config.env_manager.type = 'vector': the actions of {self._env_ref.cfg.env_id} are "
                f"{self._action_space}; must be Box, Discrete or MultiDiscrete. Use 'base' or 'subprocess'."
            )
        for key in IGNORED:
            if self._cfg[key] != BaseEnvManager.config[key]:
                raise ConfigError(
                    f"env.manager.{key} = {self._cfg[key]!r}: not available with the manager 'vector'. Remove it, or "
                    "use 'subprocess'."
                )
        self._seeds: Dict[int, int] = {}

    def enable_save_replay(self, replay_path: Any) -> None:
        raise ConfigError("--replay-path: not available with the manager 'vector'. Use 'base'.")

    def _create_state(self) -> None:
        cfg = self._env_ref.cfg
        env = _vector(self._cfg.mode, self._env_num, cfg)
        mode = env.metadata.get('autoreset_mode')
        if mode != AutoresetMode.DISABLED:
            env.close()
            raise ConfigError(
                f'env.manager.mode = {self._cfg.mode!r}: the vector environment of {cfg.env_id} starts episodes itself '
                f"({mode}), and a group starts its own, from one seed. Use 'async' or 'sync'."
            )
        self.rows = Vector(env, cfg.get('act_scale', False), cfg.get('rew_clip', False))
        self._env_episode_count = dict.fromkeys(range(self._env_num), 0)
        self._env_states = dict.fromkeys(range(self._env_num), EnvState.INIT)
        self._ready_obs = {}
        self._closed = False

    def seed(self, seed: Any, dynamic_seed: Optional[bool] = None) -> None:
        super().seed(seed, dynamic_seed)
        self._seeds.update(seed if isinstance(seed, dict) else dict(enumerate(self._env_seed)))

    def reset(self, reset_param: Optional[Dict[int, Any]] = None) -> None:
        self._check_closed()
        env_ids = list(range(self._env_num) if reset_param is None else reset_param)
        # as environments of DI-engine: a start has the seed of ``seed``, with a random number if it is dynamic
        moved = 100 * np.random.randint(1, 1000, len(env_ids)) * (getattr(self, '_env_dynamic_seed', None) is not False)
        self.rows.reset({i: int(self._seeds.get(i, i) + more) for i, more in zip(env_ids, moved)})
        self._env_states.update(dict.fromkeys(env_ids, EnvState.RUN))
        self._ready_obs.update(zip(env_ids, map(_float32, self.rows.observations(env_ids))))

    def step(self, actions: Dict[int, Any]) -> Dict[int, BaseEnvTimestep]:
        self._check_closed()
        env_ids = list(actions)
        reward, ended = self.rows.step(env_ids, [_value(action) for action in actions.values()])
        steps = {}
        for i, r, obs in zip(env_ids, reward, self.rows.observations(env_ids)):
            last, info = ended.get(i, (obs, {}))
            steps[i] = BaseEnvTimestep(_float32(last), np.array([r]), i in ended, info)
            self._ready_obs[i] = _float32(obs)
        for i in ended:
            self._env_episode_count[i] += 1
            over = self._env_episode_count[i] >= self._episode_num
            self._env_states[i] = EnvState.DONE if over else EnvState.NEED_RESET
        again = [i for i in ended if self._env_states[i] == EnvState.NEED_RESET]
        if again and self._auto_reset:
            self.reset(dict.fromkeys(again))
        return steps

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.rows.close()
            self._env_states = dict.fromkeys(range(self._env_num), EnvState.VOID)


def _vector(mode: str, number: int, cfg: EasyDict) -> VectorEnv:
    key = f'env.manager.mode = {mode!r}'
    with config_errors(f'{key}: the vector environment cannot be created'):
        if mode == 'async':
            make = partial(_in_process, os.getpid(), cfg)
            return AsyncVectorEnv([make] * number, autoreset_mode=AutoresetMode.DISABLED)
        if mode == 'sync':
            return SyncVectorEnv([partial(_seeded, cfg)] * number, autoreset_mode=AutoresetMode.DISABLED)
        if cfg.get('gymnasium_wrappers'):
            raise ConfigError(f"{key}: env.gymnasium_wrappers are for 'async' and 'sync'")
        arguments = cfg.get('env_kwargs', {})
        if mode == 'vector_entry_point':
            return gymnasium.make_vec(cfg.env_id, number, vectorization_mode=mode, **arguments)
        if ':' not in mode:
            raise ConfigError(f"{key}: must be 'async', 'sync', 'vector_entry_point' or 'module:function'")
        return import_name(mode, 'env.manager.mode')(number, **arguments)


def _in_process(parent: int, cfg: EasyDict) -> gymnasium.Env:
    if os.getpid() != parent:  # gymnasium also makes one in the parent, for its spaces
        stand_alone()
    return _seeded(cfg)


class _Seeds(gymnasium.Wrapper):
    """Seeds as DI-engine's environments do."""

    def reset(self, *, seed: Optional[int] = None, options: Optional[Dict] = None) -> Tuple:
        if seed is not None:
            seed_as_di_engine(self.env, seed)
        return self.env.reset(seed=seed, options=options)


def _seeded(cfg: EasyDict) -> gymnasium.Env:
    env = _Seeds(made(cfg))
    if isinstance(env.observation_space, Box):  # DI-engine has set the type to a class, which shared memory cannot read
        env.observation_space.dtype = np.dtype(env.observation_space.dtype)
    return env


def _value(action: Any) -> Any:
    """An action of a policy as gymnasium takes it."""
    action = to_ndarray(action)
    return action.item() if action.shape == () or (action.shape == (1, ) and action.dtype == np.int64) else action


def _float32(obs: Any) -> Any:
    return to_ndarray(obs, dtype=np.float32) if getattr(obs, 'dtype', None) == np.float64 else obs
