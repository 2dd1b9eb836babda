"""An environment of a user of DI-engine."""
import numpy as np
from ding.envs import BaseEnv, BaseEnvTimestep
from ding.utils import ENV_REGISTRY
from gymnasium import spaces

BOX, ACTIONS, REWARDS = spaces.Box(-1, 1, (4, ), np.float32), spaces.Discrete(2), spaces.Box(-1, 1, (1, ), np.float32)


@ENV_REGISTRY.register('of_a_user')
class OfAUser(BaseEnv):
    """One of DI-engine, as its tutorial shows; ``lacks`` and ``fails`` say what is wrong with it."""

    def __init__(self, cfg):
        self._fails, self._lacks, self._steps = cfg.get('fails'), cfg.get('lacks'), 0
        self._reward = cfg.get('reward', 1.0)
        if self._fails == 'create':
            raise ImportError("No module named 'its_engine'")
        for name, space in (('observation_space', BOX), ('action_space', ACTIONS), ('reward_space', REWARDS)):
            if name != self._lacks:
                setattr(self, name, None if self._lacks == f'{name}: None' else space)

    def seed(self, seed, dynamic_seed=True):
        pass

    def reset(self):
        if self._fails == 'reset':
            raise OSError('the simulator is gone')
        if self._fails == 'import':
            raise ImportError("No module named 'its_engine'")
        self._steps = 0
        return np.zeros(4, np.float32)

    def step(self, action):
        if self._fails == 'library':
            np.linalg.inv(np.zeros((2, 2)))
        if self._fails == 'step':
            raise KeyError('velocity')
        self._steps += 1
        done = self._steps == 3
        info = dict(eval_episode_return=3.0) if done and self._lacks != 'return' else {}
        return BaseEnvTimestep(np.zeros(4, np.float32), np.array([self._reward]), done, info)

    def close(self):
        pass

    def __repr__(self):
        return 'of_a_user'
