import json
import os

import pytest
import torch

from ding_grpo.rl_utils import TOKEN_ADVANTAGE_METHODS, group_advantage, return_to_go, token_advantage

VERL = json.load(open(os.path.join(os.path.dirname(__file__), '..', 'data', 'verl_policy_losses.json')))
NAMES = ('mask', 'shaped', 'reward', 'baseline', 'sum_pi_squared', 'logp_old')


def of_verl(name, mask, shaped, reward, baseline, squares, logp):
    """Our advantages (B, S) for a recorded case."""
    group = torch.tensor(VERL['index'])
    outcome = reward.unsqueeze(1) * mask  # the return from each token on, if only the last one has a reward
    if name.startswith('reinforce_plus_plus'):
        returns = return_to_go(shaped, float(name.split()[-1]))
        return token_advantage(returns, mask, 'reinforce_plus_plus')
    if name == 'remax':
        return token_advantage(return_to_go(shaped, 1.), mask, 'remax', baseline=baseline)
    if name == 'gpg':
        return group_advantage(reward, group, 'gpg').unsqueeze(1) * mask
    return token_advantage(outcome, mask, name, group, score_norm=1 - 2 * logp.exp() + squares)


def advantages(method, returns, weight, group):
    return token_advantage(
        returns, weight, method, group, score_norm=torch.ones_like(returns), baseline=returns[:, :1].mean(1)
    )


@pytest.mark.unittest
@pytest.mark.usefixtures('on_device')
class TestTokenAdvantage:

    @pytest.mark.parametrize('case', VERL['advantages'], ids=lambda case: case['name'])
    def test_equals_verl(self, case):
        adv = of_verl(case['name'], *(torch.tensor(VERL[key], dtype=torch.float64) for key in NAMES))
        assert torch.allclose(adv, torch.tensor(case['adv'], dtype=torch.float64), atol=1e-9, rtol=0)

    def test_all_cases_of_verl(self):
        names = [case['name'].split()[0] for case in VERL['advantages']]
        assert names == ['reinforce_plus_plus'] * 2 + ['remax', 'gpg', 'optimal_token_baseline']

    def test_reinforce_plus_plus_by_hand(self):
        # returns 3 and 1, 1: mean 5/3, squared distances 16/9 + 4/9 + 4/9 = 8/3, over 2
        adv = token_advantage(
            torch.tensor([[3., 9.], [1., 1.]]), torch.tensor([[1., 0.], [1., 1.]]), 'reinforce_plus_plus'
        )
        scale = (4 / 3) ** -0.5
        assert adv.flatten().tolist() == pytest.approx([4 / 3 * scale, 0, -2 / 3 * scale, -2 / 3 * scale])

    def test_optimal_token_baseline_by_hand(self):
        # W: 1, 3 in row 1 and 2 in row 2. First token: (1 * 5 + 2 * 2) / 3 = 3; row 1 alone has a second token.
        adv = token_advantage(
            torch.tensor([[5., 5.], [2., 9.]]),
            torch.tensor([[1., 1.], [1., 0.]]),
            'optimal_token_baseline',
            torch.tensor([4, 4]),
            score_norm=torch.tensor([[1., 2.], [2., -7.]])
        )
        assert adv.flatten().tolist() == pytest.approx([2, 5, -1, 0])

    def test_score_norm_is_the_squared_norm_of_the_gradient(self):
        logit = torch.randn(5, dtype=torch.float64, requires_grad=True)
        p = logit.softmax(-1)
        grad, = torch.autograd.grad(p[2].log(), logit)
        assert (1 - 2 * p[2] + p.square().sum()).item() == pytest.approx(grad.square().sum().item(), abs=1e-12)

    def test_the_optimal_baseline_has_the_least_variance(self):
        """Of single-token rows: the sum of squared norms of (R - b) grad log pi is least at its baseline."""
        torch.manual_seed(0)
        returns, norm = torch.randn(50, 1).double(), torch.rand(50, 1).double()
        weight, group = torch.ones(50, 1), torch.zeros(50).long()
        adv = token_advantage(returns, weight, 'optimal_token_baseline', group, score_norm=norm)
        baseline = (returns - adv)[0]
        for other in (baseline - 0.01, baseline + 0.01, returns.mean()):
            assert (norm * adv ** 2).sum() < (norm * (returns - other) ** 2).sum()

    @pytest.mark.parametrize('method', TOKEN_ADVANTAGE_METHODS)
    @pytest.mark.parametrize('value', [0., 1., 0.1, 1e6 + 0.1])
    def test_equal_returns_are_zero_whatever_rounding_leaves(self, method, value):
        weight = torch.tensor([[1., 1., 1.], [1., 1., 0.], [1., 0., 0.]])
        adv = advantages(method, torch.full((3, 3), value), weight, torch.zeros(3).long())
        assert torch.equal(adv, torch.zeros(3, 3))

    @pytest.mark.parametrize('method', TOKEN_ADVANTAGE_METHODS)
    def test_what_follows_the_end_of_a_row_is_zero_and_changes_nothing(self, method):
        weight, group = torch.tensor([[1., 1.], [1., 0.], [1., 1.]]), torch.tensor([0, 0, 1])
        returns = torch.tensor([[3., 2.], [1., 0.], [5., 5.]])
        clean, norm, baseline = (x.clone() for x in (returns, torch.ones(3, 2), torch.ones(3)))
        expected = token_advantage(clean, weight, method, group, norm, baseline)
        returns[1, 1] = norm[1, 1] = float('nan')
        found = token_advantage(returns, weight, method, group, norm, baseline)
        assert torch.equal(found, expected) and found[1, 1] == 0

    @pytest.mark.parametrize('method', TOKEN_ADVANTAGE_METHODS)
    def test_no_row(self, method):
        assert advantages(method, torch.zeros(0, 3), torch.zeros(0, 3), torch.zeros(0).long()).shape == (0, 3)
        assert not advantages(method, torch.ones(2, 3), torch.zeros(2, 3), torch.zeros(2).long()).any()

    @pytest.mark.parametrize(
        'options, message', [
            (dict(method='remx'), "method = 'remx'"),
            (dict(method='remax'), 'baseline of NoneType'),
            (dict(method='optimal_token_baseline'), 'group of NoneType'),
            (dict(method='optimal_token_baseline', group=torch.zeros(2).long()), 'score_norm of NoneType'),
            (dict(method='remax', baseline=torch.zeros(3)), r'baseline \(3,\)'),
        ]
    )
    def test_wrong_use(self, options, message):
        with pytest.raises(ValueError, match=message):
            token_advantage(torch.zeros(2, 3), torch.ones(2, 3), **options)


@pytest.mark.unittest
class TestGroupMethods:

    def test_gpg_by_hand(self):
        # the second group is equal: 4 rows, of which 2 teach, and so a factor of 2
        adv = group_advantage(torch.tensor([1., 0., 1., 1.]), torch.tensor([0, 0, 1, 1]), 'gpg')
        assert adv.tolist() == [1, -1, 0, 0]

    def test_max_rl_by_hand(self):
        # mean 1/4: (1 - 1/4) / (1/4) = 3. A group without success, or with a negative mean, teaches nothing.
        reward, group = torch.tensor([1., 0., 0., 0., 0., 0., -3., 1.]), torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
        assert group_advantage(reward, group, 'max_rl').tolist() == [3, -1, -1, -1, 0, 0, 0, 0]
