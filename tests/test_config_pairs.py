"""GRPO and PPO are compared on the same thing: only the policy's own block differs."""
import glob
import os
import runpy

import pytest

CONFIG = os.path.join(os.path.dirname(__file__), '..', 'config')
SAME = (
    'config', 'pretrained', 'obs_shape', 'action_shape', 'action_space', 'encoder_hidden_size_list',
    'actor_head_hidden_size'
)
PAIRS = sorted(
    os.path.basename(path)[:-len('_ppo_config.py')] for path in glob.glob(os.path.join(CONFIG, '*_ppo_config.py'))
)


def load(task, algo):
    loaded = runpy.run_path(os.path.join(CONFIG, f'{task}_{algo}_config.py'))
    return loaded['main_config'], loaded['create_config']


@pytest.mark.unittest
def test_there_are_pairs():
    assert {'cartpole', 'acrobot', 'lunarlander', 'pendulum'} <= set(PAIRS)


@pytest.mark.unittest
@pytest.mark.parametrize('task', PAIRS)
class TestPair:

    def test_environment_and_evaluator(self, task):
        (grpo, grpo_create), (ppo, ppo_create) = (load(task, algo) for algo in ('grpo', 'ppo'))
        assert grpo.env == ppo.env
        assert grpo_create.env == ppo_create.env and grpo_create.env_manager == ppo_create.env_manager
        assert grpo_create.policy.type == 'grpo' and ppo_create.policy.type == 'ppo'
        for create in (grpo_create, ppo_create):
            assert set(create) - {'collector'} == {'env', 'env_manager', 'policy'}

    def test_network(self, task):
        grpo, ppo = (load(task, algo)[0].policy.model for algo in ('grpo', 'ppo'))
        for key in SAME:
            assert grpo.get(key) == ppo.get(key), key
