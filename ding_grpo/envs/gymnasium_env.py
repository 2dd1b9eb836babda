import copy
from contextlib import closing
from importlib.util import find_spec
from typing import Any, Dict, Iterator, List, Optional, Tuple

import gymnasium
import numpy as np
from ding.envs import DingEnvWrapper, EpisodicLifeWrapper, EvalEpisodeReturnWrapper, GymToGymnasiumWrapper
from ding.utils import ENV_REGISTRY, ENV_WRAPPER_REGISTRY, import_module
from easydict import EasyDict
from gymnasium.spaces import Box
from gymnasium.wrappers import FlattenObservation

from ding_common import (
    ConfigError, Rule, check_config, config_errors, describe, import_name, is_reward, nearest, require_dict
)
from ding_common.config.env_config import check_env_config, pop_number

from .rows import Singles, no_reward, not_finite, told
from .video import Video

_WRAPPER = dict(type='', import_names=[], kwargs={})
# Wrappers of DI-engine that need spaces of gym, or an environment of DI-engine.
_FOR_OTHERS = {'obs_plus_prev_action_reward', 'reward_in_obs'}


class TellTruncation(gymnasium.Wrapper):
    """Add ``truncated`` to the info. DI-engine merges it with ``terminated``, although an episode cut by a time limit
    has not reached a terminal state. Also ``exact_reward``, the sum of the rewards so far, which DI-engine rounds to
    float32."""
    reward_range = (-float('inf'), float('inf'))  # gymnasium has none; wrappers of DI-engine read it

    def reset(self, **kwargs: Any) -> Tuple:
        self._sum = 0.0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Tuple:
        if isinstance(self.action_space, Box) and not np.isfinite(action).all():
            raise not_finite(self.spec.id, action)
        obs, reward, terminated, truncated, info = self.env.step(action)
        if not is_reward(float(reward)):
            raise no_reward(self.spec.id, reward)
        self._sum += float(reward)
        return obs, reward, terminated, truncated, dict(info, **told(terminated, truncated, self._sum))


@ENV_REGISTRY.register('gymnasium_env')
class GymnasiumEnv(DingEnvWrapper):
    """DI-engine's wrapper around a gymnasium environment that is created from a config. The wrapper of DI-engine 0.5.3
    fails on such a config, since gymnasium no longer has ``reward_range``."""

    config = dict(
        # (str) Id of a gymnasium environment, such as CartPole-v1. An observation Discrete(n) becomes one-hot, of shape
        # (n, ), and a number gets the shape (1, ).
        env_id='',
        # (dict) Additional arguments of ``gymnasium.make``, such as max_episode_steps.
        env_kwargs=dict(),
        # (list) Wrappers of gymnasium around it, innermost first: 'module:Class', or dict(type='module:Class',
        # kwargs=dict(...)). 'gymnasium.wrappers:FlattenObservation' makes one vector of a Dict or a Tuple.
        gymnasium_wrappers=[],
        # (bool) Whether actions in [-1, 1] are scaled to the bounds of the environment.
        act_scale=False,
        # (bool) Whether rewards below -10 are raised to -10.
        rew_clip=False,
        # (Union[str, list]) DI-engine's wrappers: the name of a set, or a list that includes
        # dict(type='eval_episode_return').
        env_wrapper='default',
    )
    rules = dict(
        gymnasium_wrappers=Rule('a list', lambda v: isinstance(v, list)),
        env_wrapper=Rule(
            "a list, or one of 'default', 'mujoco_default', 'atari_default', 'gym_hybrid_default'",
            lambda v: isinstance(v, list) or v in ('default', 'mujoco_default', 'atari_default', 'gym_hybrid_default')
        ),
    )

    @classmethod
    def create_collector_env_cfg(cls, cfg: Dict) -> List[Dict]:
        return cls._create(cfg, 'collector_env_num', is_train=True)

    @classmethod
    def create_evaluator_env_cfg(cls, cfg: Dict) -> List[Dict]:
        return cls._create(cfg, 'evaluator_env_num', is_train=False)

    @classmethod
    def _create(cls, cfg: Dict, key: str, is_train: bool) -> List[Dict]:
        check_env_config(cfg, cls.config, cls.rules)
        number = pop_number(cfg, key)
        if cfg.get('env_wrapper', 'default') != 'default':
            cls(cfg).try_wrappers()
        return [EasyDict(copy.deepcopy(cfg), is_train=is_train)] * number

    def __init__(self, cfg: dict = None, caller: str = 'collector', **kwargs) -> None:
        """
        Overview:
            Create the environment.
        Arguments:
            - cfg (:obj:`dict`): Keys of ``config`` above.
            - caller (:obj:`str`): ``collector`` or ``evaluator``.
        Raises:
            - ConfigError: If the environment or a wrapper cannot be created, no wrapper reports the return of an \
                episode, or ``act_scale`` is set for an environment without continuous actions.
        """
        cfg = EasyDict(cfg or {})
        if not cfg.get('env_id'):
            raise ConfigError(
                f"env.env_id = {cfg.get('env_id')!r}: must be the id of a gymnasium environment, such as "
                'CartPole-v1.'
            )
        _check_wrappers(cfg.get('env_wrapper'))
        self._wrap(TellTruncation(made(cfg)), cfg, caller)

    def _wrap(self, env: gymnasium.Env, cfg: EasyDict, caller: str) -> None:
        self._bare = env.env
        with config_errors(f"env.env_wrapper = {cfg.get('env_wrapper', 'default')!r}: DI-engine cannot create it"):
            super().__init__(env, cfg, caller=caller)
        if not any(isinstance(layer, EvalEpisodeReturnWrapper) for layer in _layers(self._env)):
            raise ConfigError(
                f"env.env_wrapper = {cfg.get('env_wrapper')!r}: none of the wrappers reports the return of an episode. "
                "Add dict(type='eval_episode_return')."
            )
        if cfg.get('act_scale') and not isinstance(env.action_space, Box):
            raise ConfigError(f'env.act_scale = True: the actions of {cfg.env_id} have no bounds. Set it to False.')

    def enable_save_replay(self, replay_path: Optional[str] = None) -> None:
        """Save a video of each episode from now on, in the folder ``replay_path``. The environment is created again."""
        if find_spec('moviepy') is None:
            raise ConfigError("a video needs the extra: pip install '.[video]' in the clone")
        env = made(self._cfg, render_mode='rgb_array')
        with config_errors(f'{self._cfg.env_id}: no video can be saved'):  # without pictures
            env = Video(env, replay_path or 'video')
        self.close()
        self._wrap(TellTruncation(env), self._cfg, 'evaluator')

    def try_wrappers(self) -> None:
        """Take one step; raises ``ConfigError`` if a wrapper does not fit the environment."""
        key, name = f'env.env_wrapper = {self._cfg.env_wrapper!r}', self._cfg.env_id
        with closing(self), config_errors(f'{key}: {name} fails in its first steps with these wrappers'):
            self._env.seed(0)
            self.reset()
            self.step(self.random_action())

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        super().seed(seed, dynamic_seed)
        for layer in _layers(self._env):
            if isinstance(layer, EpisodicLifeWrapper):
                layer.was_real_done = True  # otherwise the next start is the next life of the game before

    def reset(self) -> Any:
        if getattr(self, '_dynamic_seed', True):
            return super().reset()
        state = np.random.get_state()
        np.random.seed(self._seed)  # environments of one process share these numbers, which noop_reset draws
        try:
            return super().reset()
        finally:
            np.random.set_state(state)

    @staticmethod
    def as_rows(envs: List['GymnasiumEnv']) -> Optional[Singles]:
        """The same environments for a loop that reads arrays; None if wrappers of DI-engine change what they give."""
        if not all(env.is_plain for env in envs):
            return None
        cfg = envs[0]._cfg
        return Singles([env._bare for env in envs], cfg.get('act_scale', False), cfg.get('rew_clip', False))

    @property
    def cfg(self) -> EasyDict:
        """The section ``env``."""
        return self._cfg

    @property
    def is_plain(self) -> bool:
        """Whether only the return of an episode is added to what the environment gives."""
        for layer in _layers(self._env):
            if isinstance(layer, GymToGymnasiumWrapper):
                return type(self) is GymnasiumEnv
            if type(layer) is not EvalEpisodeReturnWrapper:
                return False
        return False

    def clone(self, caller: str = 'collector') -> 'GymnasiumEnv':
        return GymnasiumEnv(self._cfg, caller)


# Packages whose import registers environments, by the beginning of an id, and the extra that installs each.
_PACKAGES = {'MiniGrid-': ('minigrid', 'minigrid'), 'BabyAI-': ('minigrid', 'minigrid'), 'ALE/': ('ale_py', 'atari')}
_EXTRAS = ('box2d', 'mujoco')  # of gymnasium, under the same names here


def made(cfg: EasyDict, **further: Any) -> gymnasium.Env:
    """The environment of the config, with its wrappers of gymnasium."""
    arguments = cfg.get('env_kwargs', {})
    for beginning, (package, extra) in _PACKAGES.items():
        if cfg.env_id.startswith(beginning):
            if find_spec(package) is None:
                raise ConfigError(
                    f"env.env_id = {cfg.env_id!r}: needs the extra: pip install '.[{extra}]' in the clone"
                )
            import_module([package])
    try:
        env = gymnasium.make(cfg.env_id, **{**arguments, **further})
    except Exception as error:  # an environment may raise anything for its arguments
        written = f', env.env_kwargs = {dict(arguments)!r}' if arguments else ''
        unknown = isinstance(error, (gymnasium.error.NameNotFound, gymnasium.error.NamespaceNotFound))
        hint = (
            '. If a module of yours registers it, name the module: create_config.env.import_names = '
            "['ding_grpo', 'your_module']"
        ) if unknown else ''
        needed = next((extra for extra in _EXTRAS if f'gymnasium[{extra}]' in str(error)), None)
        if needed is not None:
            hint = f". Here it is the extra: pip install '.[{needed}]' in the clone"
        raise ConfigError(
            f'env.env_id = {cfg.env_id!r}{written}: gymnasium cannot create it ({describe(error)}){hint}'
        ) from error
    for wrapper in cfg.get('gymnasium_wrappers', []):
        env = _wrapped(env, wrapper)
    return FlattenObservation(env) if env.observation_space.shape == () else env  # models read vectors


def _wrapped(env: gymnasium.Env, wrapper: Any) -> gymnasium.Env:
    key = 'env.gymnasium_wrappers'
    wrapper = dict(type=wrapper) if isinstance(wrapper, str) else wrapper
    require_dict(wrapper, f'{key}: a wrapper')
    check_config(wrapper, dict(type='', kwargs={}), {}, key)
    found = import_name(wrapper.get('type', ''), f'{key}.type')
    with config_errors(f'{key}: {dict(wrapper)!r} cannot be put around the environment'):
        return found(env, **wrapper.get('kwargs', {}))


def _check_wrappers(wrappers: Any) -> None:
    """Check each wrapper in a list; DI-engine ignores keys that it does not know, and exits where cv2 is missing."""
    listed = wrappers if isinstance(wrappers, list) else []
    kinds = [wrapper.get('type') for wrapper in listed if isinstance(wrapper, dict)]
    if (wrappers == 'atari_default' or 'warp_frame' in kinds) and find_spec('cv2') is None:
        raise ConfigError(f"env.env_wrapper = {wrappers!r}: needs the extra: pip install '.[atari]' in the clone")
    for wrapper in listed:
        if callable(wrapper):
            continue
        require_dict(wrapper, 'env.env_wrapper: a wrapper')
        check_config(wrapper, _WRAPPER, dict(import_names=Rule.modules()), 'env.env_wrapper')
        import_module(wrapper.get('import_names', []))
        kind = wrapper.get('type')
        known = set(ENV_WRAPPER_REGISTRY) - _FOR_OTHERS
        if kind not in known:
            raise ConfigError(
                f'env.env_wrapper.type = {kind!r}: DI-engine has no such wrapper for gymnasium; {nearest(kind, known)}'
            )


def _layers(env: Any) -> Iterator[Any]:
    while env is not None:
        yield env
        env = getattr(env, 'env', None)
