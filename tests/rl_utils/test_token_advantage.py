import pytest
import torch

from ding_grpo.rl_utils import TOKEN_ADVANTAGE_METHODS, group_advantage, return_to_go, token_advantage
from tests.rl_utils.peers import double, recorded, tensors

pytestmark = pytest.mark.usefixtures('on_device')
VERL = recorded('verl_policy_losses')


def of_verl(name):
    """Our advantages (B, S) for a recorded case."""
    names = ('mask', 'shaped', 'reward', 'baseline', 'sum_pi_squared', 'logp_old')
    mask, shaped, reward, baseline, squares, logp = tensors(VERL, *names)
    group = torch.tensor(VERL['index'])
    outcome = reward.unsqueeze(1) * mask  # the return from each token on, if only the last one has a reward
    if name.startswith('reinforce_plus_plus'):
        return token_advantage(return_to_go(shaped, float(name.split()[-1])), mask, 'reinforce_plus_plus')
    if name == 'remax':
        return token_advantage(return_to_go(shaped, 1.), mask, 'remax', baseline=baseline)
    if name == 'gpg':
        return group_advantage(reward, group, 'gpg').unsqueeze(1) * mask
    return token_advantage(outcome, mask, name, group, score_norm=1 - 2 * logp.exp() + squares)


def advantages(method, returns, weight, group):
    baseline = returns[:, :1].mean(1)
    return token_advantage(returns, weight, method, group, score_norm=torch.ones_like(returns), baseline=baseline)


@pytest.mark.parametrize('case', VERL['advantages'], ids=lambda case: case['name'])
def test_equals_verl(case):
    assert torch.allclose(of_verl(case['name']), double(case['adv']), atol=1e-9, rtol=0)


@pytest.mark.parametrize('method', TOKEN_ADVANTAGE_METHODS)
class TestEveryMethod:

    @pytest.mark.parametrize('value', [0., 1., 0.1, 1e6 + 0.1])
    def test_equal_returns_are_zero_whatever_rounding_leaves(self, method, value):
        weight = torch.tensor([[1., 1., 1.], [1., 1., 0.], [1., 0., 0.]])
        adv = advantages(method, torch.full((3, 3), value), weight, torch.zeros(3).long())
        assert torch.equal(adv, torch.zeros(3, 3))

    def test_what_follows_the_end_of_a_row_is_zero_and_changes_nothing(self, method):
        weight, group = torch.tensor([[1., 1.], [1., 0.], [1., 1.]]), torch.tensor([0, 0, 1])
        returns, norm, baseline = torch.tensor([[3., 2.], [1., 0.], [5., 5.]]), torch.ones(3, 2), torch.ones(3)
        expected = token_advantage(returns.clone(), weight, method, group, norm.clone(), baseline)
        returns[1, 1] = norm[1, 1] = float('nan')
        found = token_advantage(returns, weight, method, group, norm, baseline)
        assert torch.equal(found, expected) and found[1, 1] == 0

    def test_no_row(self, method):
        assert advantages(method, torch.zeros(0, 3), torch.zeros(0, 3), torch.zeros(0).long()).shape == (0, 3)
        assert not advantages(method, torch.ones(2, 3), torch.zeros(2, 3), torch.zeros(2).long()).any()
