import sys
from contextlib import nullcontext
from importlib.util import find_spec

import gymnasium
import numpy as np
import pytest
from ding.envs import get_vec_env_setting
from easydict import EasyDict

from ding_common import ConfigError, TaskError
from ding_grpo.envs import GymnasiumEnv

pytestmark = pytest.mark.envtest


def run(env, action):
    steps = []
    while not steps or not steps[-1].done:
        steps.append(env.step(np.array(action)))
    return steps


class Lives(gymnasium.Env):
    """Each step costs a life of three; the observation tells the seed, the steps and the lives."""
    observation_space = gymnasium.spaces.Box(0, np.inf, (3, ), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    ale = property(lambda self: self)

    def get_action_meanings(self):
        return ['NOOP', 'FIRE']

    def lives(self):
        return 100 - self.steps

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.drawn = 0, self.np_random.random()
        return self.seen(), {}

    def step(self, action):
        self.steps += 1
        return self.seen(), 1., self.steps == 100, False, {}

    def seen(self):
        return np.array([self.drawn, self.steps, self.lives()], np.float32)


@pytest.fixture
def cartpole():
    """A function of further keys: an environment that begins with seed 0."""

    def make(env_id='CartPole-v1', **cfg):
        env = GymnasiumEnv(dict(env_id=env_id, **cfg))
        env.seed(0, dynamic_seed=False)
        env.reset()
        return env

    return make


def test_return_and_end_are_told_and_a_time_limit_from_an_end(cartpole):
    last = run(cartpole(), 0)[-1]
    assert last.info['truncated'] is False and last.info['eval_episode_return'] < 20
    assert last.obs.dtype == np.float32 and last.reward.shape == (1, )
    steps = run(cartpole(env_kwargs=dict(max_episode_steps=3)), 0)
    assert [s.info['truncated'] for s in steps] == [False, False, True]


def test_continuous_actions_are_scaled_to_the_environments_bounds(cartpole):
    envs = {torque: cartpole('Pendulum-v1', act_scale=scaled) for scaled, torque in ((True, 1.), (False, 2.))}
    assert np.allclose(*(env.step(np.array([torque], dtype=np.float32)).obs for torque, env in envs.items()))


class Paying(gymnasium.Env):
    """Each step has the same reward."""
    observation_space = gymnasium.spaces.Box(0, 1, (1, ), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, reward):
        self.reward = reward

    def reset(self, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), self.reward, False, False, {}


@pytest.mark.parametrize('reward, finite', [(3e38, True), (1.7e308, False), (float('nan'), False)])
def test_a_reward_that_is_not_finite_in_float32_is_refused(cartpole, reward, finite):
    gymnasium.register('Paying-v0', Paying)
    env = cartpole('Paying-v0', env_kwargs=dict(reward=reward, disable_env_checker=True))
    refused = pytest.raises(TaskError, match='Paying-v0 gave the reward .*, must be a finite number')
    with nullcontext() if finite else refused:
        assert np.isfinite(env.step(np.array(0)).reward).all()


LIMIT, RETURN = dict(max_episode_steps='x'), dict(type='eval_episode_return')
UNKNOWN = 'env.env_wrapper.n_frames = 2: unknown key; Allowed: import_names, kwargs, type'
NOWRAP = "env.env_wrapper.type = 'flatten_obs': DI-engine has no such wrapper .* Allowed: action_repeat, "


@pytest.mark.parametrize(
    'cfg, message', [
        (dict(env_id=None), 'env.env_id = None'),
        (dict(env_id='CartPol-v1'), "env_id = 'CartPol-v1'"),
        (dict(env_kwargs=dict(colour=1)), 'colour'),
        (dict(env_kwargs=LIMIT), "env.env_kwargs = {'max_episode_steps': 'x'}"),
        (dict(env_wrapper=[dict(type='flatten_obs')]), NOWRAP),
        (dict(env_wrapper=[dict(type='obs_plus_prev_action_reward')]), 'no such wrapper for g'),
        (dict(env_wrapper=['frame_stack']), "a wrapper = 'frame_stack': must be a dict"),
        (dict(env_wrapper=[dict(type='frame_stack', n_frames=2)]), UNKNOWN),
        (dict(env_wrapper=[dict(type='noop_reset')]), r"env.env_wrapper = \[{'type': 'noop_r"),
        (dict(env_wrapper=[]), r'env.env_wrapper = \[\]: none of the wrappers reports the return'),
        (dict(env_wrapper=5), 'env.env_wrapper = 5: DI-engine cannot create it'),
        (dict(env_id='Mine-v0'), r'If a module of yours registers it, .*create_config.env.import_names'),
        (dict(gymnasium_wrappers=['gymnasium.wrappers:Flat']), "env.gymnasium_wrappers.type = .* no 'Flat'"),
        (dict(gymnasium_wrappers=[dict(type='gymnasium.wrappers:TimeLimit')]), 'cannot be put around the env'),
        (dict(act_scale=True), 'env.act_scale = True: the actions of CartPole-v1'),
    ]
)
def test_wrong_use(cfg, message):
    with pytest.raises(ConfigError, match=message):
        GymnasiumEnv(dict(dict(env_id='CartPole-v1'), **cfg))


def setting(**changes):
    cfg = dict(type='gymnasium_env', env_id='CartPole-v1', manager=dict(type='base'), n_evaluator_episode=4)
    return get_vec_env_setting(EasyDict(cfg, **dict(dict(collector_env_num=3, evaluator_env_num=2), **changes)))


@pytest.mark.parametrize(
    'changes, message', [
        (dict(env_ids='CartPole-v1'), "env.env_ids = 'CartPole-v1': unknown key; did you mean 'env_id'"),
        (dict(env_wrapper='gym_hybrid_default'), 'CartPole-v1 fails in its first steps with these wrappers'),
        (dict(rew_clip=1), 'env.rew_clip = 1: must be True or False'),
        (dict(env_wrapper='none'), "env.env_wrapper = 'none': must be a list, or one of 'default'"),
        (dict(collector_env_num=2.0), 'env.collector_env_num = 2.0: must be an integer'),
        (dict(manager=dict(type='base', max_retry=0)), 'env.manager.max_retry = 0'),
        (dict(manager=dict(type='subprocess', context='x')), "env.manager.context = 'x': must be 'fork'"),
    ],
    ids=str
)
def test_wrong_config_names_the_key(changes, message):
    with pytest.raises(ConfigError, match=message):
        setting(**changes)


def test_keys_of_di_engines_managers_are_welcome():
    _, collect, evaluate = setting(
        manager=dict(type='subprocess', shared_memory=False, step_timeout=5), replay_path='x'
    )
    assert [c.is_train for c in collect] == [True] * 3 and [c.is_train for c in evaluate] == [False] * 2


def test_wrappers_that_read_the_range_of_rewards(cartpole):
    found = []
    cartpole(env_wrapper=[lambda env: found.append(env.reward_range) or env, RETURN])
    assert found == [(-np.inf, np.inf)]


@pytest.mark.parametrize('wrappers', [[dict(type='noop_reset')], [dict(type='episodic_life')], 'default'])
def test_one_seed_one_start_whatever_the_episode_before_was(wrappers):
    """Actions of doing nothing came from numbers that environments share; a lost life was the next start."""
    gymnasium.register('Lives-v0', Lives)
    if wrappers != 'default':
        wrappers = [*wrappers, RETURN]
    envs, starts = [GymnasiumEnv(dict(env_id='Lives-v0', env_wrapper=wrappers)) for _ in range(3)], {}
    for seed in (7, 7, 8):
        for env in envs:
            env.seed(seed, dynamic_seed=False)
        for steps, env in enumerate(envs):
            starts.setdefault(seed, []).append(env.reset())
            for _ in range(steps):
                env.step(np.array([0]))
        starts[seed].append(envs[0].reset())  # again, as an evaluation samples from the same starts
    assert all(np.array_equal(starts[7][0], start) for start in starts[7])
    assert not np.array_equal(starts[7][0], starts[8][0])
    envs[0].seed(7, dynamic_seed=False)
    before = np.random.get_state()
    envs[0].reset()
    after = np.random.get_state()
    assert before[2] == after[2] and np.array_equal(before[1], after[1])


@pytest.mark.parametrize(
    'package, env_id, extra', [
        ('ale_py', 'ALE/Pong-v5', 'atari'),
        ('mujoco', 'HalfCheetah-v5', 'mujoco'),
    ]
)
def test_a_package_that_is_missing(package, env_id, extra):
    if find_spec(package) is not None:
        pytest.skip(f'{package} is installed')
    with pytest.raises(ConfigError, match=rf"env.env_id = '{env_id}'.* pip install '.\[{extra}\]' in the clone"):
        GymnasiumEnv(dict(env_id=env_id))


@pytest.mark.parametrize('wrappers', ['atari_default', [dict(type='warp_frame'), dict(type='eval_episode_return')]])
def test_pictures_are_resized_by_a_package_of_the_extra(monkeypatch, wrappers):
    monkeypatch.setitem(sys.modules, 'cv2', None)
    with pytest.raises(ConfigError, match=r"env.env_wrapper = .*: needs the extra: pip install '.\[atari\]' in"):
        GymnasiumEnv(dict(env_id='CartPole-v1', env_wrapper=wrappers))
