"""Groups of environments that step together: the numbers of single ones, whatever the manager."""
import os
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from ding.entry import serial_pipeline_onpolicy
from ding.envs import BaseEnvManager
from ding.utils import POLICY_REGISTRY
from easydict import EasyDict
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from ding_common import ConfigError, TaskError
from ding_common.processes.env_manager import create_manager
from ding_common.processes.memory import MemoryMeter
from ding_grpo.collect.array_player import ArrayPlayer, make_player
from ding_grpo.envs import GymnasiumEnv
from ding_grpo.policy import GRPOPolicy
from tests.act.matching import MODELS, config
from tests.cases import brief, long
from tests.policies import step_policy
from tests.runs import evaluations, metrics, state, train
from tests.shipped import load

pytestmark = [pytest.mark.envtest, pytest.mark.usefixtures('own_folder')]
SPENT = ('seconds', 'memory', 'steps_per_second')  # metrics of a run that another run has not
SYNC = dict(mode='sync')
SHORT = dict(env_kwargs=dict(max_episode_steps=20), evaluator_env_num=3, n_evaluator_episode=5, stop_value=1e9)


@POLICY_REGISTRY.register('grpo_by_steps')
class BySteps(GRPOPolicy):
    """A subclass that changes what is collected, so that its groups are collected step by step."""

    def _process_transition(self, obs, policy_output, timestep):
        return super()._process_transition(obs, policy_output, timestep)


class Fails(gymnasium.Env):
    """Fails in its third step, or ends abnormally there while it is collected."""
    observation_space = gymnasium.spaces.Box(0, 1, (4, ), np.float64)
    action_space = gymnasium.spaces.Discrete(2)
    left = 0  # episodes that still do so

    def __init__(self, how='raise'):
        self.how = how

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.is_collected = 0, seed is not None and seed >= 2 ** 30  # evaluators have smaller seeds
        return np.full(4, self.np_random.random()), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 3 and self.how == 'raise' and self.is_collected:
            raise ValueError('no such action')
        if self.steps == 3 and self.how == 'exit' and self.is_collected:
            os._exit(1)
        abnormal = self.steps == 3 and self.is_collected and Fails.left > 0
        Fails.left -= abnormal
        reward = np.nan if self.how == 'nan' and self.is_collected else float(action)
        return np.full(4, self.np_random.random()), reward, self.steps == 5, False, dict(abnormal=abnormal)

    def close(self):
        if self.how == 'tell':
            os.makedirs('closed', exist_ok=True)
            open(f'closed/{os.getpid()}', 'w').close()


class Global(gymnasium.Env):
    """Draws its starts from NumPy's global numbers."""
    observation_space = gymnasium.spaces.Box(0, 1, (4, ), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.obs = np.random.random(4).astype(np.float32)
        return self.obs, {}

    def step(self, action):
        return self.obs, float(action), True, False, {}


if 'Global-v0' not in gymnasium.registry:
    gymnasium.register('Global-v0', Global)
if 'Fails-v0' not in gymnasium.registry:
    gymnasium.register('Fails-v0', Fails)


def whole_vector(number, max_episode_steps):
    """A vector environment by a function of the user."""
    make = [lambda: gymnasium.make('CartPole-v1', max_episode_steps=max_episode_steps)] * number
    return SyncVectorEnv(make, autoreset_mode=AutoresetMode.DISABLED)


def numbers(run):
    """What a run has computed."""
    kept = [{k: v for k, v in record.items() if not any(word in k for word in SPENT)} for record in metrics(run)]
    returns = [{k: v for k, v in record.items() if 'seconds' not in k} for record in evaluations(run)]
    return kept, returns


def assert_same_runs(one, other, updates):
    a, b = (state(updates, run)['model'] for run in (one, other))
    assert all(torch.equal(a[name], b[name]) for name in a)
    for of_one, of_other in zip(numbers(one), numbers(other)):
        assert len(of_one) == len(of_other) > 0
        for record, same in zip(of_one, of_other):
            np.testing.assert_equal(record, same)


def run(kind, name, env={}, **changes):
    """An update with a kind of spaces, in the folder ``name``. Environments begin another group: 24 play 64 rows."""
    main, create = config(kind)
    main.update(exp_name=name)
    main['env'].update(env, collector_env_num=24)
    create.update(changes)
    main['policy']['learn']['learner'] = dict(hook=dict(save_ckpt_after_iter=1))
    serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)


@pytest.fixture
def cartpoles():
    """A manager of two environments, and the collect mode of a policy for them."""
    cfg = EasyDict(BaseEnvManager.default_config(), type='base')
    manager = create_manager(cfg, [partial(GymnasiumEnv, dict(env_id='CartPole-v1'))] * 2)  # as a run makes it
    manager.launch()
    return manager, step_policy(dict(obs_shape=4, action_shape=2, action_space='discrete')).collect_mode


def test_who_is_played_in_arrays(cartpoles):
    manager, mode = cartpoles
    assert isinstance(make_player(manager, mode, 0, 2, 1, None), ArrayPlayer)
    changed = mode._replace(forward=lambda *args, **kwargs: mode.forward(*args, **kwargs))  # as a replay does
    assert not isinstance(make_player(manager, changed, 0, 2, 1, None), ArrayPlayer)


def test_a_process_without_groups(cartpoles):
    player = make_player(*cartpoles, 0, 2, 1, None)
    assert player.play([], 0, lambda number: None, {}, MemoryMeter('cpu')) == []


@pytest.mark.parametrize('kind', brief(MODELS, ('several', 'hybrid', 'masked', 'dict', 'image', 'memory')))
def test_together_as_step_by_step(kind):
    run(kind, 'together')
    run(kind, 'by_steps', policy=dict(type='grpo_by_steps', import_names=[__name__]))
    assert_same_runs('together', 'by_steps', 1)


def gymnasium_run(name, config, updates=2, manager=None, resume=False, kind='grpo', **env):
    """A run in the folder ``name``; ``manager`` is the section of a vector environment."""
    main, create = load(config, env={**SHORT, **env}, policy=dict(collect=dict(collector=dict(max_restarts=2))))
    create.policy.type, create.env.import_names = kind, ['ding_grpo', __name__]
    if manager is not None:
        create.env_manager.type, main.env.manager = 'vector', manager
    return train((main, create), updates, name=name, resume_training=resume)


@pytest.mark.parametrize(
    'config, env',
    [
        ('cartpole_grpo', dict(env_kwargs={})),  # episodes of different lengths
        ('cartpole_grpo', dict(env_id='Global-v0', env_kwargs={})),
        ('pendulum_grpo', dict(rew_clip=True)),
    ]
)
def test_gymnasium_together_as_step_by_step(config, env):
    for kind in ('grpo', 'grpo_by_steps'):
        gymnasium_run(kind, config, kind=kind, **env)
    assert_same_runs('grpo', 'grpo_by_steps', 2)


@pytest.mark.parametrize(
    'mode, config', [
        long('sync', 'pendulum_grpo'),
        ('async', 'cartpole_grpo'),
        (f'{__name__}:whole_vector', 'cartpole_grpo'),
    ]
)
def test_a_vector_environment_has_the_numbers_of_single_ones(mode, config):
    gymnasium_run('single', config)
    gymnasium_run('vector', config, manager=dict(mode=mode))
    assert_same_runs('single', 'vector', 2)


def test_a_memory_in_a_vector_environment():
    run('memory', 'single')
    run('memory', 'vector', dict(manager=SYNC), env_manager=dict(type='vector'))
    assert_same_runs('single', 'vector', 1)


def test_a_vector_environment_resumes():
    gymnasium_run('whole', 'cartpole_grpo', 4, SYNC)
    gymnasium_run('resumed', 'cartpole_grpo', 2, SYNC)
    gymnasium_run('resumed', 'cartpole_grpo', 4, SYNC, resume=True)
    assert_same_runs('whole', 'resumed', 4)


def test_ppo_on_a_vector_environment():
    main, create = load('cartpole_ppo', env=dict(SHORT, collector_env_num=4, manager=SYNC))
    main.policy.collect.n_sample, create.env_manager.type = 64, 'vector'
    train((main, create), 2, name='run')
    assert all(0 < record['eval_episode_return'] <= 20 for record in evaluations('run'))


FLAT = dict(gymnasium_wrappers=['gymnasium.wrappers:FlattenObservation'])
DELAYED = dict(env_wrapper=[dict(type='eval_episode_return'), dict(type='delay_reward')])


@pytest.mark.parametrize(
    'manager, env, message', [
        (dict(mode='vector_entry_point'), {}, 'the vector environment of CartPole-v1 starts episodes itself'),
        (dict(mode='vector_entry_point'), FLAT, "gymnasium_wrappers are for 'async' and 'sync'"),
        (dict(mode='threads'), {}, "env.manager.mode = 'threads': must be 'async', 'sync'"),
        (dict(mode=1), {}, 'env.manager.mode = 1: must be of type str'),
        (SYNC, DELAYED, 'without wrappers of'),
        (dict(SYNC, step_timeout=5), {}, 'env.manager.step_timeout = 5: not available with the manager'),
    ]
)
def test_a_vector_environment_that_cannot_be(manager, env, message):
    with pytest.raises(ConfigError, match=message):
        gymnasium_run('run', 'cartpole_grpo', manager=manager, **env)


def broken(how, name='run', left=0, **options):
    """An update in environments that fail, restarted at most twice. ``left``: episodes that end abnormally."""
    Fails.left = left
    kwargs = dict(how=how, disable_env_checker=True)
    gymnasium_run(name, 'cartpole_grpo', 1, env_id='Fails-v0', env_kwargs=kwargs, **options)


@pytest.mark.parametrize(
    'how, manager, message', [
        ('raise', None, r'^an environment failed in step: no such action \(test_rows.py:\d+\)$'),
        ('nan', None, '^Fails-v0 gave the reward nan, must be a finite number'),
        ('exit', {}, 'an environment failed in step'),
    ]
)
def test_an_environment_that_fails_or_dies(how, manager, message):
    with pytest.raises(TaskError, match=message):
        broken(how, manager=manager)


def test_an_abnormal_end_restarts_its_group():
    runs = dict(single={}, by_steps=dict(kind='grpo_by_steps'), vector=dict(manager=SYNC))
    for name, options in runs.items():
        broken('abnormal', name, left=2, **options)
        assert Fails.left == 0
    assert_same_runs('single', 'by_steps', 1)
    assert_same_runs('single', 'vector', 1)


def test_environments_in_processes_are_closed():
    broken('tell', manager={})
    assert len(os.listdir('closed')) >= load('cartpole_grpo')[0].env.collector_env_num


def test_too_many_abnormal_ends():
    with pytest.raises(RuntimeError, match='ended abnormally 3 times in group 0'):
        broken('abnormal', left=1000)
