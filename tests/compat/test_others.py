"""What users of DI-engine's other parts rely on, after the plugin has been imported."""
import os
import signal

import gymnasium
import numpy as np
import pytest
import torch
import torch.distributed as dist
from ding.entry import serial_pipeline_onpolicy
from ding.envs import AsyncSubprocessEnvManager, BaseEnvManager
from ditk.logging.file import LoggingFileHandler
from easydict import EasyDict
from gymnasium import spaces

from ding_common import parallel
from ding_common.processes.env_manager import AsyncManager, create_manager
from ding_grpo.envs import GymnasiumEnv
from ding_grpo.run.around import around_run
from tests.of_a_user import OfAUser
from tests.shipped import load

pytestmark = pytest.mark.envtest


class Factory:
    """Makes environments, and has no name."""

    def __call__(self):
        return OfAUser(EasyDict())


def test_an_environment_process_that_was_killed_is_renewed():
    cfg = EasyDict(AsyncSubprocessEnvManager.default_config(), retry_type='renew', max_retry=3, shared_memory=False)
    manager = AsyncManager([Factory(), Factory()], cfg)
    try:
        manager.launch()
        os.kill(manager._subprocesses[0].pid, signal.SIGKILL)
        manager._subprocesses[0].join()
        manager.reset()
        assert set(manager.ready_obs) == {0, 1}
        assert set(manager.step({i: np.array([0]) for i in (0, 1)})) == {0, 1}
    finally:
        manager.close()


def test_ppo_trains_where_the_environment_has_none_for_a_space(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main, create = load('cartpole_ppo', exp_name='run')
    create.env = dict(type='of_a_user')
    main.env = dict(
        collector_env_num=2,
        evaluator_env_num=2,
        n_evaluator_episode=2,
        stop_value=99.,
        lacks='observation_space: None'
    )
    main.policy.collect.n_sample = main.policy.learn.batch_size = 8
    serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=2)


def test_what_makes_an_environment_needs_no_name():
    manager = create_manager(EasyDict(BaseEnvManager.default_config(), type='base'), [Factory()])
    manager.launch()
    assert manager.ready_obs[0].shape == (4, )


class Parametrised(gymnasium.Env):
    """Actions of a kind and its numbers, as of gym-hybrid."""
    observation_space = spaces.Box(-1, 1, (2, ), np.float32)

    def __init__(self, **parts):
        self.action_space = parts['actions']

    def reset(self, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, True, False, {}


@pytest.mark.parametrize(
    'actions', [
        spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2, ))]),
        spaces.Dict(kind=spaces.Discrete(2), number=spaces.Box(-1, 1, (2, ))),
    ]
)
def test_actions_of_several_parts(actions):
    gymnasium.register('Parametrised-v0', Parametrised)
    env = GymnasiumEnv(dict(env_id='Parametrised-v0', env_kwargs=dict(actions=actions, disable_env_checker=True)))
    env.reset()
    assert env._env.step(actions.sample())[1] == 1.0


def test_text_logs_may_have_an_encoding_of_their_own(tmp_path):
    with around_run():
        for arguments, encoding in (((), 'utf-8'), (('w', 'latin-1'), 'latin-1'), (('w', ), 'utf-8')):
            handler = LoggingFileHandler(str(tmp_path / 'log'), *arguments)
            assert handler.encoding == encoding
            handler.close()


@pytest.mark.parametrize('backend, device', [('gloo', 'cpu'), ('cpu:gloo,cuda:nccl', 'cpu'), ('nccl', 'cuda')])
def test_where_processes_send_from(monkeypatch, backend, device):
    """DI-engine's ``DDPContext`` makes a group of NCCL alone."""
    monkeypatch.setattr(dist, 'get_backend_config', lambda: str(dist.BackendConfig(dist.Backend(backend))))
    assert parallel._device() == torch.device(device)
