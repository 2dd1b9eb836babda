"""What users of DI-engine's other parts rely on, after the plugin has been imported."""
import gymnasium
import numpy as np
import pytest
import torch
from ding.entry import serial_pipeline_onpolicy
from gymnasium import spaces

from ding_common import parallel
from ding_grpo.envs import GymnasiumEnv
from tests.of_a_user import OfAUser  # noqa: F401  registers it
from tests.processes import one_of
from tests.shipped import load

pytestmark = pytest.mark.envtest


def test_ppo_trains_where_the_environment_has_none_for_a_space(own_folder):
    main, create = load('cartpole_ppo', exp_name='run')
    create.env = dict(type='of_a_user')
    numbers = dict(collector_env_num=2, evaluator_env_num=2, n_evaluator_episode=2, stop_value=99.)
    main.env = dict(numbers, lacks='observation_space: None')
    main.policy.collect.n_sample = main.policy.learn.batch_size = 8
    serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=2)


class Parametrised(gymnasium.Env):
    """Actions of a kind and its numbers, as of gym-hybrid. An episode ends when it has received an action."""
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


@pytest.mark.parametrize('backend, device', [('cpu:fake', 'cpu'), ('cpu:fake,cuda:fake', 'cpu'), ('cuda:fake', 'cuda')])
def test_where_processes_send_from(backend, device):
    """DI-engine's ``DDPContext`` makes a group of NCCL alone."""
    with one_of(2, backend=backend):
        assert parallel._device() == torch.device(device)
