import gymnasium
import numpy as np
import pytest

from ding_grpo.envs import QuickReset


class Game(gymnasium.Env):
    """As ale-py's: a seed decides what wrappers draw, and loads the game. An observation is such a draw."""
    observation_space = gymnasium.spaces.Box(0, np.inf, (1, ), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    ale = property(lambda self: self)

    def __init__(self, repeats=0.0):
        self.repeats, self.loads = repeats, 0

    def getFloat(self, key):
        return dict(repeat_action_probability=self.repeats)[key]

    def seed_game(self, seed):
        self._np_random, _ = gymnasium.utils.seeding.np_random(seed + 1)
        return seed, seed + 1

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        found = {}
        if seed is not None:
            found = dict(seeds=self.seed_game(seed))
            self.loads += 1
        return self.np_random.uniform(size=1).astype(np.float32), dict(found, options=options)


def test_seeds_give_the_same_games_without_loading():
    resets = [dict(seed=5), dict(), dict(seed=5), dict(seed=6, options=dict(x=1)), dict(), dict(seed=None)]
    plain, quick = Game(), QuickReset(Game())
    for given in resets:
        (obs, info), (other, of_other) = plain.reset(**given), quick.reset(**given)
        assert obs.tolist() == other.tolist() and info == of_other
    assert (plain.loads, quick.unwrapped.loads) == (3, 0)


def test_a_game_that_repeats_actions():
    with pytest.raises(ValueError, match='with probability 0.25, and only loading .*wrappers:StickyAction to repeat'):
        QuickReset(Game(0.25))


@pytest.mark.parametrize('name', ['Breakout', 'Pong', 'SpaceInvaders'])
def test_games_of_ale(name):
    ale_py = pytest.importorskip('ale_py')
    pytest.importorskip('cv2')
    gymnasium.register_envs(ale_py)

    def make(*wrappers):
        env = gymnasium.make(f'ALE/{name}-v5', repeat_action_probability=0.0)
        for wrapper in (*wrappers, lambda env: gymnasium.wrappers.AtariPreprocessing(env, frame_skip=1)):
            env = wrapper(env)
        return gymnasium.wrappers.StickyAction(env, 0.25)

    def played(env, seed):
        found = [env.reset(seed=seed), *map(env.step, actions)]
        for *_, info in found:
            del info['frame_number']  # since the game was loaded
        return [(obs.tolist(), *rest) for obs, *rest in found]

    actions = np.random.default_rng(0).integers(0, 4, 60).tolist()
    plain, quick = make(), make(QuickReset)
    for seed in (7, 8, 7):
        assert played(plain, seed) == played(quick, seed)
