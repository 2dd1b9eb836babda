"""Environments that fail, or lack what DI-engine needs: one line, before anything else is printed."""
import math
import os

import numpy as np
import pytest
from ding.entry import serial_pipeline, serial_pipeline_onpolicy

from ding_common import ConfigError, TaskError

import tests.of_a_user  # noqa: F401
from tests.shipped import load


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a run: (manager, env, pipeline) -> nothing."""
    monkeypatch.chdir(tmp_path)

    def begin(manager='base', env={}, pipeline=serial_pipeline_onpolicy):
        main, create = load('cartpole_grpo', exp_name='run')
        create.env, create.env_manager.type = dict(type='of_a_user'), manager
        main.env = dict(collector_env_num=8, evaluator_env_num=2, n_evaluator_episode=2, stop_value=99., **env)
        main.policy.update(group_size=4)
        main.policy.collect.n_sample = main.policy.learn.batch_size = 2
        if pipeline is serial_pipeline:
            main.policy.learn.target_kl = None
            main.policy.other = dict(replay_buffer=dict(max_use=2))
        pipeline((main, create), seed=0, max_train_iter=1)

    return begin


@pytest.mark.envtest
class TestEnvironments:

    @pytest.mark.parametrize('manager', ['base', 'subprocess'])
    @pytest.mark.parametrize(
        'where, message', [
            ('step', r"^an environment failed in step: .*velocity.* \(of_a_user.py:\d+\)$"),
            ('reset', r'^an environment failed in reset: .*the simulator is gone.* \(of_a_user.py:\d+\)$'),
        ]
    )
    def test_an_error_of_their_own_is_the_first_thing_said(self, start, capfd, caplog, manager, where, message):
        with pytest.raises(TaskError, match=message) as caught:
            start(manager, dict(fails=where))
        assert str(caught.value) == caught.value.message  # without marks
        said = '\n'.join([*capfd.readouterr(), caplog.text])
        assert 'max retries' not in said and 'Traceback' not in said

    @pytest.mark.parametrize('manager', ['base', 'subprocess'])
    def test_an_error_of_a_library_names_the_line_that_called_it(self, start, manager):
        with pytest.raises(TaskError, match=r'in step: .*Singular matrix.* \(of_a_user.py:\d+\)$'):
            start(manager, dict(fails='library'))

    @pytest.mark.parametrize('lacks', ['observation_space', 'action_space', 'reward_space'])
    def test_without_a_space(self, start, lacks):
        with pytest.raises(ConfigError, match=f'create_config.env: the environment OfAUser has no {lacks}. It must'):
            start(env=dict(lacks=lacks))
        assert not os.path.exists('run')

    def test_with_none_for_a_space(self, start):
        with pytest.raises(ConfigError, match='the environment has no observation_space, which grpo reads'):
            start(env=dict(lacks='observation_space: None'))

    @pytest.mark.parametrize('manager', ['base', 'subprocess'])
    def test_without_a_return(self, start, manager):
        with pytest.raises(ConfigError, match='the environment.s info must contain eval_episode_return'):
            start(manager, dict(lacks='return'))

    @pytest.mark.parametrize('reward, told', [(1e39, r'1e\+39'), (math.nan, 'nan')])
    def test_with_a_reward_that_is_not_finite(self, start, reward, told):
        with pytest.raises(TaskError,
                           match=f'^an environment gave the reward {told}, must be a finite number .float32'):
            start(env=dict(reward=reward))

    @pytest.mark.parametrize('manager', ['base_v2', 'subprocess_v2', 'gym_vector'])
    @pytest.mark.parametrize('pipeline', [serial_pipeline_onpolicy, serial_pipeline])
    def test_managers_of_other_pipelines(self, start, manager, pipeline):
        with pytest.raises(ConfigError, match=f"env_manager.type = '{manager}': does not work in the modes serial"):
            start(manager, pipeline=pipeline)


@pytest.mark.unittest
def test_an_action_that_is_nan_is_not_the_rewards_fault():
    from easydict import EasyDict

    from ding_grpo.envs.gymnasium_env import GymnasiumEnv
    env = GymnasiumEnv(EasyDict(env_id='Pendulum-v1', act_scale=False))
    env.reset()
    with pytest.raises(TaskError, match=r'Pendulum-v1 got the action array\(\[nan\].* from the policy'):
        env.step(np.array([math.nan], np.float32))
