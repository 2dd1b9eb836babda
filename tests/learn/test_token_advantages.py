"""Advantages of single tokens, from a config."""
import pytest
import torch

from ding_grpo.data.batch import Batch
from ding_grpo.rl_utils import return_to_go, token_advantage
from tests.policies import (DISCRETE, learned, reward, sample_groups, sample_steps, step_policy, token_policy, weights)


class TestTokenAdvantages:

    @pytest.mark.parametrize(
        'log_prob_fn, sampling', [('linear_log_prob', dict()), ('efficient_method', dict(top_k=5, temperature=0.7))]
    )
    def test_optimal_token_baseline_reads_the_distributions(self, sampling, log_prob_fn):
        policy = token_policy(collect=sampling, adv_method='optimal_token_baseline', log_prob_fn=log_prob_fn)
        data = sample_groups(policy, reward=reward)
        found = policy.read(Batch.of(data), squares=True)
        batch = learned(policy, data)
        norm = 1 - 2 * found.logp.exp() + found.squares
        assert (norm[batch.weight != 0] > 0).all()
        returns = return_to_go(batch.reward, 1.)
        expected = token_advantage(returns, batch.weight, 'optimal_token_baseline', batch.group, norm)
        assert torch.allclose(batch.adv, expected, atol=1e-4) and batch.adv.dim() == 2 and batch.score_norm is None

    def test_reinforce_plus_plus_is_discounted_and_white(self):
        policy = token_policy(collect=dict(discount_factor=0.9), adv_method='reinforce_plus_plus')
        batch = learned(policy, sample_groups(policy, reward=reward))
        adv, returns = (x[batch.weight != 0] for x in (batch.adv, return_to_go(batch.reward, 0.9)))
        assert torch.allclose(adv, (returns - returns.mean()) / returns.std(), atol=1e-4)
        last = (batch.weight.sum(1) - 1).long()
        outcome = torch.stack([r[n] for r, n in zip(batch.reward, last)])
        assert torch.allclose(return_to_go(batch.reward, 0.9)[:, 0], outcome * 0.9 ** last, atol=1e-6)

    @pytest.mark.parametrize('method', ['reinforce_plus_plus', 'optimal_token_baseline', 'max_rl', 'gpg'])
    def test_of_steps(self, method):
        policy = step_policy(DISCRETE, learn=dict(adv_method=method, learning_rate=1e-2))
        before = weights(policy)
        policy.learn_mode.forward([sample_steps(policy, [3, 5], lambda row, step: float(row + step))])
        assert weights(policy).isfinite().all() and not torch.equal(before, weights(policy))

    @pytest.mark.parametrize(
        'learn, known', [
            (dict(adv_method='reinforce_plus_plus'), True),
            (dict(adv_method='optimal_token_baseline'), False),
            (dict(advantage='gae', adv_method=None), False),
            (dict(kl=dict(beta=0.5, in_reward=True)), False),
        ]
    )
    def test_the_collectors_table_shows_none_that_need_the_model(self, learn, known):
        policy = token_policy(**learn)
        shown, = policy.advantages(sample_groups(policy, [0], reward=reward))
        assert (shown is not None) == known

    def test_one_row_a_group(self):
        policy = token_policy(dict(group_size=1), adv_method='reinforce_plus_plus')
        assert learned(policy, sample_groups(policy, [0, 1, 2], reward=lambda group, row: float(group))).adv.any()


@pytest.mark.parametrize(
    'lengths, advantage, cut, discount, expected',
    [
        # discounted returns 1.5 and 1
        ([2, 1], 'outcome', False, 0.5, [0.25, -0.25]),
        # returns to go 2, 1 and 1 are compared within the group: mean 4/3
        ([2, 1], 'return_to_go', False, 1., [[2 / 3, -1 / 3], [-1 / 3, 0]]),
        # a cut episode is taken to go on: 1 + 1/2 + 1/4 ... = 2 at each step; 1.5 and 1 in the other: mean 6.5 / 4
        ([2, 2], 'return_to_go', True, 0.5, [[0.375, 0.375], [-0.125, -0.625]]),
        # returns 2 and 1, then 1 and, of what has ended, 0
        ([2, 1], 'return_to_go_by_step', False, 1., [[0.5, 0.5], [-0.5, 0]]),
        # returns 2 and 1.5, then 2 for ever and 1
        ([1, 2], 'return_to_go_by_step', True, 0.5, [[0.25, 0], [-0.25, -0.5]]),
    ]
)
def test_returns_of_steps_by_hand(lengths, advantage, cut, discount, expected):
    """Each step has the reward 1; with ``cut`` a time limit ends the first row."""
    learn = dict(adv_method='no_std', advantage=advantage, extend_truncated=cut)
    policy = step_policy(DISCRETE, learn=learn, collect=dict(discount_factor=discount))
    batch = learned(policy, [sample_steps(policy, lengths, truncated=(0, ) if cut else ())])
    assert torch.allclose(batch.adv, torch.tensor(expected))
