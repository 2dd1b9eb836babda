import gymnasium
import numpy as np
import pytest

from ding_grpo.envs import PressFire

NOOP, FIRE = 0, 1


class Game(gymnasium.Env):
    """Two lives. A ball falls three steps after FIRE, and gives one point at each step of its fall."""
    observation_space = gymnasium.spaces.Box(0, np.inf, (1, ), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    ale = property(lambda self: self)
    meanings = ['NOOP', 'FIRE']

    def get_action_meanings(self):
        return self.meanings

    def lives(self):
        return self.left

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.fall = 2, None
        return self.seen(), {}

    def step(self, action):
        if self.fall is None:
            self.fall = 0 if action == FIRE else None
        else:
            self.fall += 1
        reward = 0. if self.fall is None else 1.
        if self.fall == 3:
            self.left, self.fall = self.left - 1, None
        return self.seen(), reward, self.left == 0, False, {}

    def seen(self):
        return np.array([-1 if self.fall is None else self.fall], np.float32)


def test_fire_at_the_start_and_after_a_lost_life():
    env = PressFire(Game())
    for _ in range(2):
        assert env.reset(seed=0)[0] == 0
        played = [env.step(NOOP)[:3] for _ in range(6)]
        assert [float(obs[0]) for obs, _, _ in played] == [1, 2, 0, 1, 2, -1]
        assert [reward for _, reward, _ in played] == [1, 1, 2, 1, 1, 1]
        assert [done for _, _, done in played] == [False] * 5 + [True]


def test_a_game_without_it(monkeypatch):
    monkeypatch.setattr(Game, 'meanings', ['NOOP', 'UP'])
    with pytest.raises(ValueError, match='the game has no action FIRE; its actions are NOOP, UP'):
        PressFire(Game())
