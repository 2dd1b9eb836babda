"""GRPO and PPO are compared on the same thing: only the policy's own block differs."""
import pytest

from tests.shipped import load, names

SAME = (
    'config', 'pretrained', 'obs_shape', 'action_shape', 'action_space', 'encoder_hidden_size_list',
    'actor_head_hidden_size'
)


@pytest.mark.parametrize('name', names('*_ppo*'))
def test_environment_evaluator_network_and_kl_are_the_same(name):
    (grpo, grpo_create), (ppo, ppo_create) = load(name.replace('_ppo', '_grpo')), load(name)
    assert grpo.env == ppo.env
    assert grpo_create.env == ppo_create.env and grpo_create.env_manager == ppo_create.env_manager
    assert grpo_create.policy.type == 'grpo' and ppo_create.policy.type in ('ppo', 'ppo_kl')
    for create in (grpo_create, ppo_create):
        assert set(create) - {'collector'} == {'env', 'env_manager', 'policy'}
    for key in SAME:
        assert grpo.policy.model.get(key) == ppo.policy.model.get(key), key
    has_kl = ppo_create.policy.type == 'ppo_kl'
    assert (grpo.policy.learn.get('kl', {}).get('beta', 0) > 0) == has_kl
    if has_kl:
        assert grpo.policy.learn.kl == ppo.policy.learn.kl
        assert grpo.policy.learn.entropy.weight == ppo.policy.learn.entropy_weight
