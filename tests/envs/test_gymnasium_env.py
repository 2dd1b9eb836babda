import numpy as np
import pytest

from ding_common import ConfigError
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

    @pytest.mark.parametrize(
        'cfg, message', [
            ({}, 'env.env_id = None'), (dict(env_id='CartPol-v1'), "env_id = 'CartPol-v1'"),
            (dict(env_id='CartPole-v1', env_kwargs=dict(colour=1)), 'colour')
        ]
    )
    def test_wrong_use(self, cfg, message):
        with pytest.raises(ConfigError, match=message):
            GymnasiumEnv(cfg)
