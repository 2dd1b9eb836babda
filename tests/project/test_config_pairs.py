"""GRPO and PPO are compared on the same thing: only the policy's own block differs."""
import pytest

from tests.shipped import load, names

SAME = (
    'config', 'pretrained', 'obs_shape', 'action_shape', 'action_space', 'encoder_hidden_size_list',
    'actor_head_hidden_size'
)
PAIRS = [name[:-len('_ppo')] for name in names('*_ppo')]


@pytest.mark.unittest
def test_there_are_pairs():
    assert {'cartpole', 'acrobot', 'lunarlander', 'pendulum'} <= set(PAIRS)


@pytest.mark.unittest
@pytest.mark.parametrize('task', PAIRS)
class TestPair:

    def test_environment_and_evaluator(self, task):
        (grpo, grpo_create), (ppo, ppo_create) = (load(f'{task}_{algo}') for algo in ('grpo', 'ppo'))
        assert grpo.env == ppo.env
        assert grpo_create.env == ppo_create.env and grpo_create.env_manager == ppo_create.env_manager
        assert grpo_create.policy.type == 'grpo' and ppo_create.policy.type == 'ppo'
        for create in (grpo_create, ppo_create):
            assert set(create) - {'collector'} == {'env', 'env_manager', 'policy'}

    def test_network(self, task):
        grpo, ppo = (load(f'{task}_{algo}')[0].policy.model for algo in ('grpo', 'ppo'))
        for key in SAME:
            assert grpo.get(key) == ppo.get(key), key
