"""Environments that fail, or lack what DI-engine needs: one line, before anything else is printed."""
import math
import os

import numpy as np
import pytest
from ding.entry import serial_pipeline, serial_pipeline_onpolicy
from easydict import EasyDict

import tests.of_a_user  # noqa: F401
from ding_common import ConfigError, TaskError
from ding_grpo.envs.gymnasium_env import GymnasiumEnv
from tests.runs import train
from tests.shipped import load


@pytest.fixture
def start(own_folder):
    """Starts a run: (manager, pipeline, keys of the environment) -> nothing."""

    def begin(manager='base', pipeline=serial_pipeline_onpolicy, **env):
        main, create = load('cartpole_grpo', exp_name='run', policy=dict(group_size=4, collect=dict(groups=2)))
        create.env, create.env_manager.type = dict(type='of_a_user'), manager
        main.env = dict(collector_env_num=8, evaluator_env_num=2, n_evaluator_episode=2, stop_value=99., **env)
        if pipeline is serial_pipeline:
            main.policy.learn.target_kl = None
            main.policy.other = dict(replay_buffer=dict(max_use=2))
        train((main, create), 1, pipeline=pipeline, batch_groups=2)

    return begin


PLACE = r'.* \(of_a_user.py:\d+\)$'


@pytest.mark.envtest
class TestEnvironments:

    @pytest.mark.parametrize(
        'manager, fails, message',
        [
            ('base', 'step', f'^an environment failed in step: .*velocity{PLACE}'),
            ('subprocess', 'step', f'^an environment failed in step: .*velocity{PLACE}'),
            ('subprocess', 'reset', f'^an environment failed in reset: .*the simulator is gone{PLACE}'),
            ('base', 'library', f'in step: .*Singular matrix{PLACE}'),  # names the line that called it
            ('base', 'create', "create_config.env: OfAUser cannot be created .*No module named .its_engine.*Install"),
            ('base', 'import', "an environment failed in reset: .*No module named .its_engine"),
        ]
    )
    def test_an_error_of_their_own_is_the_first_thing_said(self, start, capfd, caplog, manager, fails, message):
        with pytest.raises((ConfigError, TaskError), match=message) as caught:
            start(manager, fails=fails)
        assert str(caught.value) == caught.value.message  # without marks
        assert len(caught.value.message.splitlines()) == 1 and not os.path.exists('run')
        said = '\n'.join([*capfd.readouterr(), caplog.text])
        assert 'max retries' not in said and 'Traceback' not in said

    @pytest.mark.parametrize(
        'lacks, message', [
            ('observation_space', 'create_config.env: the environment OfAUser has no observation_space. It must'),
            ('observation_space: None', 'the environment has no observation_space, which grpo reads'),
        ]
    )
    def test_without_a_space(self, start, lacks, message):
        with pytest.raises(ConfigError, match=message):
            start(lacks=lacks)
        assert not os.path.exists('run')

    def test_without_a_return(self, start):
        with pytest.raises(ConfigError, match='the environment.s info must contain eval_episode_return'):
            start('subprocess', lacks='return')

    @pytest.mark.parametrize('reward, told', [(1e39, r'1e\+39'), (math.nan, 'nan')])
    def test_with_a_reward_that_is_not_finite(self, start, reward, told):
        with pytest.raises(TaskError, match=f'^an environment gave the reward {told}, must be a finite number .float3'):
            start(reward=reward)

    @pytest.mark.parametrize(
        'manager, pipeline', [
            ('base_v2', serial_pipeline),
            ('subprocess_v2', serial_pipeline_onpolicy),
            ('gym_vector', serial_pipeline_onpolicy),
        ]
    )
    def test_managers_of_other_pipelines(self, start, manager, pipeline):
        with pytest.raises(ConfigError, match=f"env_manager.type = '{manager}': does not work in the modes serial"):
            start(manager, pipeline)


def test_an_action_that_is_nan_is_not_the_rewards_fault():
    env = GymnasiumEnv(EasyDict(env_id='Pendulum-v1', act_scale=False))
    env.reset()
    with pytest.raises(TaskError, match=r'Pendulum-v1 got the action array\(\[nan\].* from the policy'):
        env.step(np.array([math.nan], np.float32))
