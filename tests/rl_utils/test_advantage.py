import json
import os

import pytest
import torch

from ding_grpo.rl_utils import ADVANTAGE_METHODS, equal_groups, group_advantage

DATA = json.load(open(os.path.join(os.path.dirname(__file__), '..', 'data', 'notebook_verl.json')))


@pytest.mark.unittest
@pytest.mark.usefixtures('on_device')
class TestGroupAdvantage:

    def test_by_hand(self):
        # rewards 1, 0, 0, 0: mean 1/4, squared distances 9/16 + 3/16 = 3/4, over 3: std 1/2
        adv = group_advantage(torch.tensor([1., 0., 0., 0.]), torch.zeros(4, dtype=torch.long), 'grpo', eps=0)
        assert torch.allclose(adv, torch.tensor([1.5, -0.5, -0.5, -0.5]))

    def test_equals_the_notebook(self):
        for reward, expected in zip(DATA['notebook']['rewards'], DATA['notebook']['advantages_unbiased_std_eps_1e_4']):
            adv = group_advantage(torch.tensor(reward).double(), torch.zeros(6, dtype=torch.long))
            assert torch.allclose(adv, torch.tensor(expected).double(), atol=1e-6)

    @pytest.mark.parametrize(
        'method, peer', [
            ('grpo', 'grpo'),
            ('no_std', 'grpo_no_std'),
            ('rloo', 'rloo'),
            ('reinforce_plus_plus_baseline', 'reinforce_plus_plus_baseline'),
            ('pass_k', 'grpo_passk'),
            ('opo', 'opo'),
        ]
    )
    def test_equals_verl(self, method, peer):
        score = torch.tensor(DATA['verl']['score'], dtype=torch.float64)
        length = torch.tensor(DATA['verl']['mask']).sum(1)
        adv = group_advantage(score, torch.tensor(DATA['verl']['group']), method, 1e-6, length)
        expected = torch.tensor(DATA['verl']['advantages'][peer], dtype=torch.float64)[:, 0]
        assert torch.allclose(adv, expected, atol=1e-9, rtol=0)

    def test_rloo_and_batch_and_pass_k_by_hand(self):
        reward, group = torch.tensor([3., 1., 2., 5.]), torch.tensor([0, 0, 0, 1])
        assert group_advantage(reward, group, 'rloo').tolist() == [1.5, -1.5, 0, 0]  # 3 - (1 + 2) / 2
        # all rewards: mean 2.75, squared distances 0.0625 + 3.0625 + 0.5625 + 5.0625 = 8.75, over 3
        std = (8.75 / 3) ** 0.5
        assert group_advantage(reward, group, 'batch', eps=0).tolist() == pytest.approx([1 / std, -1 / std, 0, 0])
        assert group_advantage(reward, group, 'pass_k', eps=0).tolist() == [1, 0, 0, 0]  # (3 - 2) / 1

    def test_opo_by_hand(self):
        adv = group_advantage(torch.tensor([1., 0.]), torch.tensor([0, 0]), 'opo', length=torch.tensor([1, 3]))
        assert adv.tolist() == [0.75, -0.25]  # baseline (1 * 1 + 3 * 0) / 4

    def test_reinforce_plus_plus_is_whitened_over_the_tokens(self):
        reward, length = torch.randn(12).double(), torch.randint(1, 9, (12, ))
        adv = group_advantage(reward, torch.arange(12) // 4, 'reinforce_plus_plus_baseline', length=length)
        tokens = adv.repeat_interleave(length)
        assert tokens.mean().item() == pytest.approx(0, abs=1e-9) and tokens.std().item() == pytest.approx(1, abs=1e-6)

    @pytest.mark.parametrize('method', ADVANTAGE_METHODS)
    def test_no_row(self, method):
        empty = torch.zeros(0)
        assert group_advantage(empty, empty.long(), method, length=empty.long()).shape == (0, )

    @pytest.mark.parametrize('method', ADVANTAGE_METHODS)
    def test_order_and_ids_do_not_matter(self, method):
        reward, group = torch.randn(12), torch.tensor([7, 7, 7, -3, -3, -3, -3, 100, 100, 100, 100, 100])
        order, length = torch.randperm(12), torch.randint(1, 9, (12, ))
        assert torch.allclose(
            group_advantage(reward, group, method, length=length)[order],
            group_advantage(reward[order], group[order], method, length=length[order])
        )

    @pytest.mark.parametrize('method', ADVANTAGE_METHODS)
    @pytest.mark.parametrize('value', [0., 1., 0.1, 1e6 + 0.1])
    def test_equal_rewards_are_zero_whatever_rounding_leaves(self, method, value):
        adv = group_advantage(torch.full((7, ), value), torch.zeros(7, dtype=torch.long), method, 1e-12, torch.ones(7))
        assert torch.equal(adv, torch.zeros(7))

    @pytest.mark.parametrize('method', ADVANTAGE_METHODS)
    def test_group_of_one_is_zero(self, method):
        assert torch.equal(
            group_advantage(torch.tensor([3.]), torch.tensor([0]), method, length=torch.ones(1)), torch.zeros(1)
        )

    def test_equal_groups(self):
        reward = torch.tensor([1., 0., 0.5, 0.5, 0.5])
        assert equal_groups(reward, torch.tensor([0, 0, 1, 1, 2])).tolist() == [False, True, True]
        for group in (torch.tensor([0, 0]), torch.tensor([0, 0, 1, 1, -1])):
            with pytest.raises(ValueError, match='group'):
                equal_groups(reward, group)

    def test_wrong_use(self):
        with pytest.raises(ValueError, match='gpro'):
            group_advantage(torch.zeros(2), torch.zeros(2).long(), 'gpro')
        with pytest.raises(ValueError, match='eps = -1'):
            group_advantage(torch.zeros(2), torch.zeros(2).long(), eps=-1)
        with pytest.raises(ValueError, match='length.*negative'):
            group_advantage(torch.zeros(2), torch.zeros(2).long(), 'opo', length=torch.tensor([1, -1]))
        with pytest.raises(ValueError, match='length = None'):
            group_advantage(torch.zeros(2), torch.zeros(2).long(), 'opo')
        with pytest.raises(ValueError, match='group of torch.float32'):
            group_advantage(torch.zeros(2), torch.zeros(2))
        with pytest.raises(ValueError, match=r'\(B, \)'):
            group_advantage(torch.zeros(2, 2), torch.zeros(2).long())
