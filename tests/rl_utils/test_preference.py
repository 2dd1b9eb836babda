"""``preference_error``: DPO of the best row of each group against the worst."""
import math

import pytest
import torch

from ding_grpo.rl_utils import preference_data, preference_error
from tests.rl_utils.peers import assert_recorded, double, recorded, tensors

PEERS = recorded('relatives')


def groups(*numbers):
    return torch.tensor(numbers)


@pytest.mark.parametrize('case', PEERS['dpo'], ids=lambda case: f"beta-{case['beta']}")
def test_openrlhf(case):
    new, old, mask, reward = tensors(PEERS, 'logp_new', 'logp_old', 'mask', 'reward')
    data = preference_data(new.requires_grad_(), old, mask, reward, groups(*PEERS['group']))
    loss, info = preference_error(data, case['beta'])
    assert_recorded(loss, new, case, 'grad')
    assert info == (case['accuracy'], 1.)


def test_by_hand():
    # group 5: h = 0.5, -1 and 1 (without the token of weight 0); best 2, worst 1: h difference 2
    # group 3 has equal rewards, and the row of group 4 no token that counts: groups of the mean are 5 and 3
    logp = double([[-0.5, 9.], [-1., -1.], [-1., 0.], [-1., -1.], [-2., -2.], [-1., -1.]]).requires_grad_()
    ref = double([[-1., 0.], [-0.5, -0.5], [-1.5, -0.5], [-1., -2.], [-2., -1.], [-1., -1.]])
    weight = double([[1, 0], [1, 1], [1, 1], [1, 1], [1, 1], [0, 0]])
    reward = double([0.5, 0.1, 0.9, 1., 1., 7.])
    loss, info = preference_error(preference_data(logp, ref, weight, reward, groups(5, 5, 5, 3, 3, 4)), beta=0.5)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-0.5 * 2)) / 2) and info == (1., 0.5)
    loss.backward()
    slope = 0.5 * (1 / (1 + math.exp(1))) / 2  # beta sigmoid(-margin) / 2 groups
    expected = double([[0, 0], [slope, slope], [-slope, -slope], [0, 0], [0, 0], [0, 0]])
    assert torch.allclose(logp.grad, expected, atol=1e-12)


def test_padding_may_be_anything_and_no_pair_is_0():
    logp = double([[-1., float('nan')], [-2., float('-inf')]]).requires_grad_()
    data = preference_data(logp, logp.detach() - 1, double([[1, 0], [1, 0]]), double([1., 0.]), groups(0, 0))
    loss, _ = preference_error(data, 1.)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2)) and logp.grad.tolist() == [[-0.5, 0], [0.5, 0]]
    loss, info = preference_error(data._replace(reward=double([1., 1.])), 1.)
    assert loss.item() == 0 and info == (0., 0.) and loss.requires_grad
    empty = preference_data(*[torch.zeros(0, 2).double()] * 3, torch.zeros(0).double(), groups(0)[:0])
    assert preference_error(empty)[0].item() == 0
