from typing import Any, Tuple

import gymnasium
from ding.envs import DingEnvWrapper
from ding.utils import ENV_REGISTRY
from easydict import EasyDict
from gymnasium.error import Error as GymnasiumError

from ding_common import ConfigError


class TellTruncation(gymnasium.Wrapper):
    """
    Overview:
        Put ``truncated`` into the info: DI-engine merges it with ``terminated``, and a return that a time limit cut is
        not one that ended.
    """

    def step(self, action: Any) -> Tuple:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, dict(info, truncated=bool(truncated and not terminated))


@ENV_REGISTRY.register('gymnasium_env')
class GymnasiumEnv(DingEnvWrapper):
    """
    Overview:
        DI-engine's wrapper around an environment of gymnasium made from a config, where the wrapper of 0.5.3 fails \
        (gymnasium has no ``reward_range`` any more). Keys: ``env_id``, ``env_kwargs`` for ``gymnasium.make``, and \
        those of the wrapper (``act_scale``, ``rew_clip``, ``env_wrapper``).
    Interfaces:
        As ``DingEnvWrapper``.
    """

    def __init__(self, cfg: dict = None, caller: str = 'collector', **kwargs) -> None:
        """
        Overview:
            Make the environment.
        Arguments:
            - cfg (:obj:`dict`): See the class.
            - caller (:obj:`str`): ``collector`` or ``evaluator``.
        Raises:
            - ConfigError: If gymnasium does not make it.
        """
        cfg = EasyDict(cfg or {})
        if not cfg.get('env_id'):
            raise ConfigError('env.env_id = None: must be the id of an environment of gymnasium, such as CartPole-v1.')
        try:
            env = gymnasium.make(cfg.env_id, **cfg.get('env_kwargs', {}))
        except (GymnasiumError, ImportError, TypeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(f'env.env_id = {cfg.env_id!r}: gymnasium does not make it ({reason})') from error
        super().__init__(TellTruncation(env), cfg, caller=caller)

    def clone(self, caller: str = 'collector') -> 'GymnasiumEnv':
        return GymnasiumEnv(self._cfg, caller)
