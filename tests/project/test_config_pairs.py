"""GRPO and PPO are compared on the same thing: only the policy's own block differs."""
import pytest

from tests.shipped import load, names

SAME = (
    'config', 'pretrained', 'obs_shape', 'action_shape', 'action_space', 'encoder_hidden_size_list',
    'actor_head_hidden_size'
)
PAIRS = [(name.replace('_ppo', '_grpo'), name) for name in names('*_ppo*')]


@pytest.mark.unittest
def test_there_are_pairs():
    tasks = {'cartpole', 'acrobot', 'lunarlander', 'pendulum', 'think_answer'}
    assert {f'{task}_ppo' for task in tasks} | {'think_answer_ppo_kl'} <= {ppo for _, ppo in PAIRS}


@pytest.mark.unittest
@pytest.mark.parametrize('grpo, ppo', PAIRS)
class TestPair:

    def test_environment_and_evaluator(self, grpo, ppo):
        (grpo, grpo_create), (ppo, ppo_create) = load(grpo), load(ppo)
        assert grpo.env == ppo.env
        assert grpo_create.env == ppo_create.env and grpo_create.env_manager == ppo_create.env_manager
        assert grpo_create.policy.type == 'grpo' and ppo_create.policy.type in ('ppo', 'ppo_kl')
        for create in (grpo_create, ppo_create):
            assert set(create) - {'collector'} == {'env', 'env_manager', 'policy'}

    def test_network(self, grpo, ppo):
        grpo, ppo = (load(name)[0].policy.model for name in (grpo, ppo))
        for key in SAME:
            assert grpo.get(key) == ppo.get(key), key

    def test_kl(self, grpo, ppo):
        (grpo, _), (ppo, create) = load(grpo), load(ppo)
        has_kl = create.policy.type == 'ppo_kl'
        assert (grpo.policy.learn.get('beta', 0) > 0) == has_kl
        if has_kl:
            for key in ('beta', 'kl_type', 'entropy_weight'):
                assert grpo.policy.learn[key] == ppo.policy.learn[key], key
