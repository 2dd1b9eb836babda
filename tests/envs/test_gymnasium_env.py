import numpy as np
import pytest
from ding.envs import get_vec_env_setting
from easydict import EasyDict

from ding_common import ConfigError, TaskError
from ding_grpo.envs import GymnasiumEnv


def run(env, action):
    steps = []
    while not steps or not steps[-1].done:
        steps.append(env.step(np.array(action)))
    return steps


@pytest.mark.envtest
class TestGymnasiumEnv:

    def test_one_seed_one_start(self):
        env = GymnasiumEnv(dict(env_id='CartPole-v1'))
        starts = []
        for seed in (5, 5, 6):
            env.seed(seed, dynamic_seed=False)
            starts.append(env.reset())
        assert np.array_equal(starts[0], starts[1]) and not np.array_equal(starts[0], starts[2])

    def test_return_and_end_are_told(self):
        env = GymnasiumEnv(dict(env_id='CartPole-v1'))
        env.seed(0, dynamic_seed=False)
        env.reset()
        last = run(env, 0)[-1]
        assert last.info['truncated'] is False and last.info['eval_episode_return'] < 20
        assert last.obs.dtype == np.float32 and last.reward.shape == (1, )

    def test_a_time_limit_is_told_from_an_end(self):
        env = GymnasiumEnv(dict(env_id='CartPole-v1', env_kwargs=dict(max_episode_steps=3)))
        env.reset()
        steps = run(env, 0)
        assert [s.info['truncated'] for s in steps] == [False, False, True]

    def test_continuous_actions_are_scaled_to_the_environments_bounds(self):
        costs = []
        for scaled, torque in ((True, 1.), (False, 2.)):
            env = GymnasiumEnv(dict(env_id='Pendulum-v1', act_scale=scaled))
            env.seed(0, dynamic_seed=False)
            env.reset()
            costs.append(env.step(np.array([torque], dtype=np.float32)).obs)
        assert np.allclose(*costs)

    @pytest.mark.parametrize('reward, finite', [(3e38, True), (1.7e308, False), (float('nan'), False)])
    def test_a_reward_that_is_not_finite_in_float32_is_refused(self, monkeypatch, reward, finite):
        env = GymnasiumEnv(dict(env_id='CartPole-v1'))
        env.seed(0, dynamic_seed=False)
        env.reset()
        inner = env._env.unwrapped
        monkeypatch.setattr(inner, 'step', lambda action: (inner.state, reward, False, False, {}))
        if finite:
            assert np.isfinite(env.step(np.array(0)).reward).all()
        else:
            with pytest.raises(TaskError, match='CartPole-v1 gave the reward .*, must be a finite number'):
                env.step(np.array(0))

    @pytest.mark.parametrize(
        'cfg, message', [
            ({}, 'env.env_id = None'),
            (dict(env_id='CartPol-v1'), "env_id = 'CartPol-v1'"),
            (dict(env_id='CartPole-v1', env_kwargs=dict(colour=1)), 'colour'),
            (
                dict(env_id='CartPole-v1', env_kwargs=dict(max_episode_steps='x'
                                                           )), "env.env_kwargs = {'max_episode_steps': 'x'}"
            ),
            (dict(env_id='CartPole-v1', env_wrapper=[dict(type='none')]), r"env.env_wrapper = \[{'type': 'none'}\]"),
            (
                dict(env_id='CartPole-v1',
                     env_wrapper=[]), r'env.env_wrapper = \[\]: none of the wrappers reports the return'
            ),
            (dict(env_id='Mine-v0'), r'If a module of yours registers it, .*create_config.env.import_names'),
            (dict(env_id='CartPole-v1', act_scale=True), 'env.act_scale = True: the actions of CartPole-v1'),
        ]
    )
    def test_wrong_use(self, cfg, message):
        with pytest.raises(ConfigError, match=message):
            GymnasiumEnv(cfg)

    @pytest.mark.parametrize(
        'changes, message', [
            (dict(env_ids='CartPole-v1'), "env.env_ids = 'CartPole-v1': unknown key; did you mean 'env_id'"),
            (dict(rew_clip=1), 'env.rew_clip = 1: must be of type bool'),
            (dict(env_wrapper='none'), "env.env_wrapper = 'none': must be a list, or one of 'default'"),
            (dict(collector_env_num=2.0), 'env.collector_env_num = 2.0: must be an integer'),
            (dict(n_evaluator_episode=1), 'env.n_evaluator_episode = 1: must be at least env.evaluator_env_num = 2'),
            (dict(manager=dict(type='bas')), "env.manager.type = 'bas': unknown manager; did you mean 'base'"),
            (dict(manager=dict(type='base', auto_reset=False)), 'env.manager.auto_reset = False: must be True'),
            (dict(manager=dict(type='base', max_retry=0)), 'env.manager.max_retry = 0'),
            (dict(manager=dict(type='subprocess', context='x')), "env.manager.context = 'x': must be 'fork'"),
        ],
        ids=str
    )
    def test_wrong_config_names_the_key(self, changes, message):
        cfg = dict(type='gymnasium_env', env_id='CartPole-v1', manager=dict(type='base'), n_evaluator_episode=4)
        with pytest.raises(ConfigError, match=message):
            get_vec_env_setting(EasyDict(cfg, **dict(dict(collector_env_num=2, evaluator_env_num=2), **changes)))

    @pytest.mark.parametrize(
        'manager', [dict(type='subprocess', shared_memory=False, step_timeout=5),
                    dict(type='base')]
    )
    def test_keys_of_di_engines_managers_are_welcome(self, manager):
        cfg = dict(type='gymnasium_env', env_id='CartPole-v1', manager=manager, n_evaluator_episode=4, replay_path='x')
        _, collect, evaluate = get_vec_env_setting(EasyDict(cfg, collector_env_num=3, evaluator_env_num=2))
        assert len(collect) == 3 and len(evaluate) == 2
        assert all(c.is_train for c in collect) and not any(c.is_train for c in evaluate)
