"""What the environment wrote is read and never learned."""
import pytest
import torch

from ding_grpo.data.batch import Batch
from dizoo_llm.envs import TokenEnv
from tests.policies import BY_TURN, SETTINGS, Chatter, gradient, sample_dialogues, token_policy

pytestmark = [pytest.mark.unittest, pytest.mark.parametrize('setting', ['stop strings', 'top-k'])]


def sampled(setting, groups, **learn):
    """A policy, and what it sampled: groups of 8 rows."""
    options, sampling = SETTINGS[setting]
    env = TokenEnv(Chatter(), **options)
    policy = token_policy(dict(group_size=8), sampling, env=env, **learn, **BY_TURN)
    return policy, sample_dialogues(policy, env, groups)


def test_the_learner_computes_what_the_sampler_reported(setting):
    policy, samples = sampled(setting, 10)
    batch = Batch.of(samples)
    own, reply = batch.weight != 0, (batch.weight == 0) & (batch.turn >= 0)
    assert reply.any(1).float().mean() > 0.5 and len(batch) == 80 and own.sum() > 400
    assert (policy.read(batch).logp - batch.logp_old)[own].abs().max() <= 2e-6
    # The control: it does not pass when rows get the replies of others.
    tokens = batch.action[reply]
    batch.action[reply] = tokens[torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))]
    gap = (policy.read(batch).logp - batch.logp_old)[own & (batch.turn > 0)].abs()
    assert (gap > 1e-4).float().mean() > 0.5 and gap.max() > 1e-2


def test_numbers_at_replies_reach_no_gradient(setting):
    found = []
    for changed in (False, True):
        policy, samples = sampled(setting, 4, batch_groups=4, entropy=dict(weight=0.1))
        for sample in samples if changed else ():
            replies = (sample['weight'] == 0) & (sample['turn'] >= 0)
            sample['logp_old'][replies] = torch.randn(int(replies.sum())) * 9
            if 'kept' in sample:
                sample['kept'][replies] = torch.randint(0, 9, sample['kept'][replies].shape)
        metrics = policy.learn_mode.forward(samples)
        assert metrics['optimizer_steps'] > 0 and metrics['grad_norm'] > 0
        found.append(gradient(policy))
    assert torch.equal(*found)
