import json
import os

import pytest
import torch

from ding_grpo.rl_utils import ADVANTAGE_METHODS, equal_groups, group_advantage

DATA = json.load(open(os.path.join(os.path.dirname(__file__), '..', 'data', 'notebook_verl.json')))


@pytest.mark.unittest
class TestGroupAdvantage:

    def test_by_hand(self):
        # rewards 1, 0, 0, 0: mean 1/4, squared distances 9/16 + 3/16 = 3/4, over 3: std 1/2
        adv = group_advantage(torch.tensor([1., 0., 0., 0.]), torch.zeros(4, dtype=torch.long), 'grpo', eps=0)
        assert torch.allclose(adv, torch.tensor([1.5, -0.5, -0.5, -0.5]))

    def test_equals_the_notebook(self):
        for reward, expected in zip(DATA['notebook']['rewards'], DATA['notebook']['advantages_unbiased_std_eps_1e_4']):
            adv = group_advantage(torch.tensor(reward).double(), torch.zeros(6, dtype=torch.long))
            assert torch.allclose(adv, torch.tensor(expected).double(), atol=1e-6)

    @pytest.mark.parametrize('method, peer, eps', [('grpo', 'grpo', 1e-6), ('no_std', 'grpo_no_std', 1e-6)])
    def test_equals_verl(self, method, peer, eps):
        score, group = torch.tensor(DATA['verl']['score']).double(), torch.tensor(DATA['verl']['group'])
        expected = torch.tensor(DATA['verl']['advantages'][peer]).double()[:, 0]
        assert torch.allclose(group_advantage(score, group, method, eps), expected, atol=1e-6)

    @pytest.mark.parametrize('method', ADVANTAGE_METHODS)
    def test_order_and_ids_do_not_matter(self, method):
        reward, group = torch.randn(12), torch.tensor([7, 7, 7, -3, -3, -3, -3, 100, 100, 100, 100, 100])
        order = torch.randperm(12)
        assert torch.allclose(
            group_advantage(reward, group, method)[order], group_advantage(reward[order], group[order], method)
        )

    @pytest.mark.parametrize('method', ADVANTAGE_METHODS)
    @pytest.mark.parametrize('value', [0., 1., 0.1, 1e6 + 0.1])
    def test_equal_rewards_are_zero_whatever_rounding_leaves(self, method, value):
        adv = group_advantage(torch.full((7, ), value), torch.zeros(7, dtype=torch.long), method, eps=1e-12)
        assert torch.equal(adv, torch.zeros(7))

    @pytest.mark.parametrize('method', ADVANTAGE_METHODS)
    def test_group_of_one_is_zero(self, method):
        assert torch.equal(group_advantage(torch.tensor([3.]), torch.tensor([0]), method), torch.zeros(1))

    def test_equal_groups(self):
        reward = torch.tensor([1., 0., 0.5, 0.5, 0.5])
        assert equal_groups(reward, torch.tensor([0, 0, 1, 1, 2])).tolist() == [False, True, True]

    def test_wrong_use(self):
        with pytest.raises(ValueError, match='gpro'):
            group_advantage(torch.zeros(2), torch.zeros(2).long(), 'gpro')
        with pytest.raises(ValueError, match=r'\(B, \)'):
            group_advantage(torch.zeros(2, 2), torch.zeros(2).long())
