"""KL in the reward, coefficients that follow a target, and learning from tokens of high entropy only."""
import copy

import pytest
import torch
from easydict import EasyDict

from ding_grpo.learn.adaptive import Coefficients
from ding_grpo.learn.advantage import with_kl_in_reward
from ding_grpo.rl_utils import group_advantage, high_entropy, kl_estimate
from tests.policies import (change, learned, make_batch, reward, sample_groups, token_policy, update, weights)


def coefficients(kl=None, entropy=None):
    """With these targets."""
    of_entropy = dict(weight=0.0, target=entropy, step=0.01)
    return Coefficients(EasyDict(kl=dict(beta=0.1, target=kl, horizon=100), entropy=of_entropy))


def policy_of(factor=None, **learn):
    """A policy, whose reference differs from it if there is a factor."""
    policy = token_policy(**dict(dict(learning_rate=1e-2, entropy=dict(weight=0.0)), **learn))
    if factor is not None:
        change(policy.reference, factor)
    return policy


class TestCoefficients:

    def test_kl_by_hand(self):
        # KL 0.1 is far above the target 0.02: 20 % in 100 rows, 10 % in 50. Then 0.019: 5 % below, 2.5 % in 50 rows.
        found = coefficients(kl=0.02)
        for measured, rows, expected in (
            (dict(kl=0.1), 50, 0.11),
            (dict(kl=0.019), 50, 0.11 * 0.975),
            ({}, 50, 0.11 * 0.975),  # no step: nothing was measured
            (dict(kl=0.), 1000, 0.11 * 0.975 * 0.8),  # at most 20 % in an update
        ):
            found.follow(measured, rows)
            assert found.beta == pytest.approx(expected)

    def test_entropy_by_hand(self):
        found, applied = coefficients(entropy=0.5), []
        for entropy in (0.4, 0.5, 0.6, 0.6, 0.6, 0.2):
            applied.append(found.entropy_weight)
            found.follow(dict(entropy=entropy), 8)
        # after 0.4 and 0.5: 0.01, 0.02. After 0.6: off, while the coefficient falls to 0.01, 0 and 0.
        assert applied == pytest.approx([0, 0.01, 0.02, 0, 0, 0]) and found.entropy_weight == pytest.approx(0.01)

    def test_states_of_runs_without_the_target(self):
        both = dict(kl=0.02, entropy=1.0)
        saved, one_target, fresh = coefficients(**both), coefficients(entropy=1.0), coefficients(**both)
        saved.follow(dict(kl=1., entropy=0.1), 100)
        one_target.load_state_dict(saved.state_dict())
        assert (one_target.beta, one_target.entropy_weight) == (0.1, 0.01)
        fresh.load_state_dict({})
        assert (fresh.beta, fresh.entropy_weight) == (0.1, 0)


class TestKLInReward:

    def test_of_each_token_by_hand(self):
        logp, ref = torch.tensor([[-1., -2., -9.]]), torch.tensor([[-1.5, -1., float('nan')]])
        weight, rewards = torch.tensor([[1., 1., 0.], [0., 1., 0.]]).split(1)
        batch = make_batch(weight, logp_old=logp, logp_ref=ref, reward=rewards)
        # half of the squared log ratios 0.5 and -1
        assert with_kl_in_reward(batch, 0.1, 'k2').reward[0].tolist() == pytest.approx([-0.0125, 0.95, 0])

    def test_rows_are_compared_by_the_reward_less_their_kl(self):
        policy = policy_of(1.3, adv_method='no_std', kl=dict(beta=0.5, in_reward=True))
        data = sample_groups(policy, reward=reward)
        batch = learned(policy, data)
        kl = kl_estimate(batch.logp_old, batch.logp_ref, 'k3').masked_fill(batch.weight == 0, 0).sum(1)
        plain = torch.cat([sample['reward'].sum(1) for sample in data])
        expected = group_advantage(plain - 0.5 * kl, batch.group, 'no_std')
        assert kl.abs().min() > 1e-4 and torch.allclose(batch.adv, expected, atol=1e-6)

    def test_the_loss_has_no_second_kl(self):
        """The advantages of a group sum to 0, and so does the loss of the first step, unlike with the KL in it."""
        metrics = update(policy_of(1.3, adv_method='no_std', kl=dict(beta=0.5, in_reward=True)))
        assert metrics['policy_loss'] == pytest.approx(0, abs=1e-6) and metrics['kl'] > 1e-4

    @pytest.mark.parametrize('learn', [dict(adv_method='reinforce_plus_plus'), dict(advantage='gae', adv_method=None)])
    def test_with_returns_to_go_and_a_critic(self, learn):
        policy = policy_of(1.3, **learn, kl=dict(beta=0.5, in_reward=True))
        batch = learned(policy, sample_groups(policy, reward=reward))
        assert batch.adv.dim() == 2 and batch.adv.isfinite().all()
        assert (batch.reward[:, 0] != 0).any()  # not the last token alone


class TestTargets:

    def test_follow_what_was_measured(self):
        policy = policy_of(
            1.3, kl=dict(beta=0.1, target=1e-6, horizon=8), entropy=dict(weight=0.0, target=9.0, step=0.1)
        )
        first, second = update(policy), update(policy)
        assert (first['beta'], first['entropy_weight']) == (0.1, 0)  # the bonus waits for a measurement
        assert second['beta'] == pytest.approx(0.12) and second['entropy_weight'] == pytest.approx(0.1)

    def test_coefficients_change_what_is_learned(self):
        found = []
        for kl, entropy in (({}, {}), (dict(target=1e-6, horizon=1), {}), ({}, dict(target=9.0, step=0.5))):
            policy = policy_of(1.3, kl=dict(kl, beta=0.5), entropy=dict(entropy, weight=0.0))
            data = sample_groups(policy, reward=reward)
            for _ in range(2):
                policy.learn_mode.forward(copy.deepcopy(data))
            found.append(weights(policy))
        assert not torch.allclose(found[0], found[1], atol=1e-5) and not torch.allclose(found[0], found[2], atol=1e-5)

    def test_metrics_only_with_a_target(self):
        policy = policy_of(kl=dict(beta=0.1))
        assert not {'beta', 'entropy_weight'} & set(update(policy))
        assert 'coefficients' not in policy.learn_mode.state_dict()
        monitored = policy_of(kl=dict(beta=0.1, target=0.1)).learn_mode.monitor_vars()
        assert 'beta' in monitored and 'entropy_weight' not in monitored


class TestTopEntropy:

    def test_by_hand(self):
        entropy = torch.tensor([[0.1, 0.9, 5.], [0.5, 0.4, 0.9]])
        weight = torch.tensor([[1., 1., 0.], [1., 1., 1.]])
        for share, expected in ((0.2, [1, 5]), (0.4, [1, 5]), (0.6, [1, 3, 5]), (1., [0, 1, 3, 4, 5])):
            # 0.2 of 5 tokens is one; the two of entropy 0.9 are equal
            assert high_entropy(entropy, weight, share).flatten().nonzero().flatten().tolist() == expected
        assert not high_entropy(entropy, torch.zeros(2, 3), 0.2).any()

    def test_others_have_no_advantage_and_no_gradient(self):
        policy = policy_of(entropy=dict(top_share=0.2))
        data = sample_groups(policy, reward=reward)
        plain = learned(policy_of(), data)
        batch = learned(policy, data)
        high = high_entropy(policy_of().read(plain).entropy, batch.weight, 0.2)
        assert 0 < high.sum() < 0.3 * batch.weight.sum()
        assert torch.allclose(batch.adv, torch.where(high, plain.adv.unsqueeze(1), 0.), atol=1e-6)
