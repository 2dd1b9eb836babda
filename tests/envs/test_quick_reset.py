import gymnasium
import numpy as np
import pytest

from ding_grpo.envs import QuickReset


class Game(gymnasium.Env):
    """As ale-py's: a seed decides what wrappers draw, and loads the game. An observation is such a draw, and what a
    reset has left from the games before."""
    observation_space = gymnasium.spaces.Box(0, np.inf, (2, ), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    ale = property(lambda self: self)
    sound_obs = False

    def __init__(self, repeats=0.0):
        self.repeats, self.loads = repeats, 0
        self.seed_game()
        self.load_game()

    def getFloat(self, key):
        return dict(repeat_action_probability=self.repeats)[key]

    def seed_game(self, seed=None):
        self._np_random, found = gymnasium.utils.seeding.np_random(seed if seed is None else seed + 1)
        return seed, found

    def load_game(self):
        self.left, self.loads = 0, self.loads + 1

    def clone_state(self, include_rng=False):
        assert include_rng
        return self.left

    def restore_state(self, state):
        self.left = state

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        found = {}
        if seed is not None:
            found = dict(seeds=self.seed_game(seed))
            self.load_game()
        self.left += 1
        return np.array([self.np_random.uniform(), self.left], np.float32), dict(found, options=options)


def test_seeds_give_the_same_games_without_loading():
    plain, quick = Game(), QuickReset(Game())
    loads = quick.unwrapped.loads
    for given in [dict(seed=5), dict(), dict(seed=5), dict(seed=6, options=dict(x=1)), dict(), dict(seed=None)]:
        (obs, info), (other, of_other) = plain.reset(**given), quick.reset(**given)
        assert obs.tolist() == other.tolist() and info == of_other
    assert quick.unwrapped.loads == loads


def test_without_seeds_games_differ():
    first, second = (QuickReset(Game()).reset()[0] for _ in range(2))
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize(
    'changes, match', [
        (dict(repeats=0.25), 'repeat_action_probability = 0.25: must be 0 .* use gymnasium.wrappers:StickyAction'),
        (dict(sound_obs=True), 'sound_obs = True: must be False with QuickReset'),
    ]
)
def test_refused_games(changes, match):
    env = Game()
    vars(env).update(changes)
    with pytest.raises(ValueError, match=match):
        QuickReset(env)


def test_refused_environment():
    with pytest.raises(ValueError, match='for games of ale-py, and not for .*CartPole'):
        QuickReset(gymnasium.make('CartPole-v1'))


def game_of(name, *wrappers):
    ale_py = pytest.importorskip('ale_py')
    pytest.importorskip('cv2')
    gymnasium.register_envs(ale_py)
    env = gymnasium.make(f'ALE/{name}-v5', repeat_action_probability=0.0)
    for wrapper in (*wrappers, lambda env: gymnasium.wrappers.AtariPreprocessing(env, frame_skip=1)):
        env = wrapper(env)
    return gymnasium.wrappers.StickyAction(env, 0.25)


def played(env, seed):
    actions = np.random.default_rng(0).integers(0, 4, 60).tolist()
    found = [env.reset(seed=seed), *map(env.step, actions)]
    for *_, info in found:
        del info['frame_number']  # since the game was loaded
    return [(obs.tolist(), *rest) for obs, *rest in found]


@pytest.mark.parametrize('name', ['Breakout', 'Pong', 'SpaceInvaders'])
def test_games_of_ale_as_without_it(name):
    plain, quick = game_of(name), game_of(name, QuickReset)
    for seed in (7, 8, 7):
        assert played(plain, seed) == played(quick, seed)


def test_a_start_of_ale_whatever_came_before():
    """This game keeps some state over a reset."""
    first, second = game_of('Assault', QuickReset), game_of('Assault', QuickReset)
    for seed in (3, 4, 5):
        played(second, seed)
    second.reset()
    assert played(first, 7) == played(second, 7)
