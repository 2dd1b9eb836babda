"""GRPO and PPO are compared on the same thing: only the policy's own block differs."""
import pytest
import torch
from ding.model import VAC

from tests.shipped import load, names

SAME = (
    'config', 'pretrained', 'obs_shape', 'action_shape', 'action_space', 'encoder_hidden_size_list',
    'actor_head_hidden_size'
)
POLICIES = (*names('*_grpo'), *names('*_ppo'), *names('*_gae'))
OF_STEPS = [name for name in POLICIES if 'obs_shape' in load(name)[0].policy.model]


@pytest.mark.parametrize('name', names('*_ppo*'))
def test_environment_evaluator_network_and_kl_are_the_same(name):
    (grpo, grpo_create), (ppo, ppo_create) = load(name.replace('_ppo', '_grpo')), load(name)
    if name == 'halfcheetah_ppo':  # a group of two whole episodes, beside segments of sixteen environments
        assert (grpo.env.pop('collector_env_num'), ppo.env.pop('collector_env_num')) == (2, 16)
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


@pytest.mark.parametrize('name', OF_STEPS)
def test_the_network_reads_an_observation(name):
    model = load(name)[0].policy.model
    shape = model.obs_shape
    obs = torch.zeros(2, *([shape] if isinstance(shape, int) else shape))
    out = VAC(**model)(obs, mode='compute_actor_critic')
    logit = out['logit']['mu'] if model.action_space == 'continuous' else out['logit']
    assert logit.shape == (2, model.action_shape) and out['value'].shape == (2, )
