import pytest
import torch

from ding_grpo.rl_utils import return_to_go, step_advantage

pytestmark = pytest.mark.usefixtures('on_device')


def test_by_hand():
    # rewards of 1 a step, rows of 3, 1 and 2 steps: the mean at step 0 is 2, at step 1 it is 1, at step 2 it is 1/3
    return_ = torch.tensor([[3., 2., 1.], [1., 0., 0.], [2., 1., 0.]])
    weight, group = (return_ != 0).float(), torch.zeros(3).long()
    centred = torch.tensor([[1., 1., 2 / 3], [-1., 0., 0.], [0., 0., 0.]])
    root = ((1 + 1 + 4 / 9 + 1) / 6) ** 0.5  # six steps count
    for method, expected in (('no_std', centred), ('rloo', centred * 3 / 2), ('grpo', centred / root)):
        assert torch.allclose(step_advantage(return_, weight, group, method, eps=0), expected)
    assert (step_advantage(return_, weight, group)[0] > 0).all()  # the best learns from its later steps


def test_groups_do_not_touch():
    generator = torch.Generator(torch.get_default_device()).manual_seed(0)
    return_, weight = torch.randn(6, 4, generator=generator), torch.ones(6, 4)
    group = torch.tensor([5, -1, 5, -1, -1, 5])
    adv = step_advantage(return_, weight, group)
    for number in (5, -1):
        rows = group == number
        assert torch.allclose(adv[rows], step_advantage(return_[rows], weight[rows], group[rows]))


def test_equal_groups_and_nothing():
    ones = torch.ones(3, 2)
    assert torch.equal(step_advantage(ones, ones, torch.zeros(3).long()), torch.zeros(3, 2))
    assert step_advantage(ones[:, :0], ones[:, :0], torch.zeros(3).long()).shape == (3, 0)


def test_return_to_go_by_hand():
    reward = torch.tensor([[1., 2., 4.], [1., 0., 0.]])
    assert return_to_go(reward, 0.5).tolist() == [[3, 4, 4], [1, 0, 0]]
    assert return_to_go(reward, 1.0)[:, 0].tolist() == [7, 1]
    assert torch.equal(return_to_go(reward, 0.0), reward)
    assert return_to_go(torch.zeros(2, 0), 0.9).shape == (2, 0)
