import gymnasium
import numpy as np
import pytest

from ding_grpo.envs import PressFire

NOOP, FIRE = 0, 2


class Game(gymnasium.Env):
    """Three lives. FIRE begins a ball, which is lost after three steps and gives a point at each. An observation is the
    number of steps of the ball (-1 without a ball) and the seed."""
    observation_space = gymnasium.spaces.Box(-1, np.inf, (2, ), np.float32)
    action_space = gymnasium.spaces.Discrete(3)
    ale = property(lambda self: self)
    meanings = ['NOOP', 'UP', 'FIRE']
    fatal = False  # whether the second FIRE ends the game

    def __init__(self, limit=100):
        self.limit = limit  # of steps

    def get_action_meanings(self):
        return self.meanings

    def lives(self):
        return self.left

    def reset(self, seed=None, options=None):
        self.left, self.fall, self.steps, self.given = 3, None, 0, seed
        return self.seen(), {}

    def step(self, action):
        self.steps += 1
        if self.fall is None:
            self.fall = 0 if action == FIRE else None
        else:
            self.fall += 1
        reward = 0. if self.fall is None else 1.
        over = self.fatal and self.left == 2 and action == FIRE
        if self.fall == 3:
            self.left, self.fall = self.left - 1, None
        return self.seen(), reward, self.left == 0 or over, self.steps == self.limit, {}

    def seen(self):
        return np.array([-1 if self.fall is None else self.fall, self.given], np.float32)


def played(env, steps):
    """Fall, reward, terminated, truncated of each step."""
    return [(float(obs[0]), *rest) for obs, *rest, _ in (env.step(NOOP) for _ in range(steps))]


def test_fire_at_the_start_and_after_each_lost_life():
    env = PressFire(Game())
    for seed in (5, 6):
        assert env.reset(seed=seed)[0].tolist() == [0, seed]
        life = [(1, 1, False, False), (2, 1, False, False), (0, 2, False, False)]
        assert played(env, 9) == [*life, *life, *life[:2], (-1, 1, True, False)]


def test_a_game_that_ends_with_fire(monkeypatch):
    monkeypatch.setattr(Game, 'fatal', True)
    env = PressFire(Game())
    env.reset(seed=0)
    assert played(env, 3)[-1] == (0, 2, True, False)


@pytest.mark.parametrize('limit, last', [(4, (-1, 1, False, True)), (5, (0, 2, False, True))])
def test_a_time_limit(limit, last):
    """It ends with the step that loses a life, or with FIRE after it."""
    env = PressFire(Game(limit))
    env.reset(seed=0)
    assert played(env, 3)[-1] == last


def test_a_time_limit_of_one_step():
    with pytest.raises(RuntimeError, match=r'first action FIRE \(truncated=True\); raise max_episode_steps'):
        PressFire(Game(1)).reset(seed=0)


def test_a_game_without_fire(monkeypatch):
    monkeypatch.setattr(Game, 'meanings', ['NOOP', 'UP'])
    with pytest.raises(ValueError, match='the game has no action FIRE; its actions are NOOP, UP'):
        PressFire(Game())
