import pytest
import torch

from ding_grpo.rl_utils import ADVANTAGE_METHODS, equal_groups, group_advantage
from tests.rl_utils.peers import double, recorded

PEERS = recorded('notebook_verl')


@pytest.mark.usefixtures('on_device')
class TestAgainstPeers:

    def test_notebook(self):
        case = PEERS['notebook']
        for reward, expected in zip(case['rewards'], case['advantages_unbiased_std_eps_1e_4']):
            adv = group_advantage(double(reward), torch.zeros(6, dtype=torch.long))
            assert torch.allclose(adv, double(expected), atol=1e-6)

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
    def test_verl(self, method, peer):
        case = PEERS['verl']
        length = torch.tensor(case['mask']).sum(1)
        adv = group_advantage(double(case['score']), torch.tensor(case['group']), method, 1e-6, length)
        assert torch.allclose(adv, double(case['advantages'][peer])[:, 0], atol=1e-9, rtol=0)


STD = (8.75 / 3) ** 0.5  # of 3, 1, 2, 5: mean 2.75, squared distances 0.0625 + 3.0625 + 0.5625 + 5.0625 = 8.75


@pytest.mark.usefixtures('on_device')
@pytest.mark.parametrize(
    'method, reward, group, expected',
    [
        # mean 1/4, squared distances 9/16 + 3/16 = 3/4, over 3: std 1/2
        ('grpo', [1., 0., 0., 0.], [0, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]),
        ('batch', [3., 1., 2., 5.], [0, 0, 0, 1], [1 / STD, -1 / STD, 0, 0]),
        # the second group is equal: 4 rows, of which 2 teach, and so a factor of 2
        ('gpg', [1., 0., 1., 1.], [0, 0, 1, 1], [1, -1, 0, 0]),
        # mean 1/4: (1 - 1/4) / (1/4) = 3. A group without success, or with a negative mean, teaches nothing.
        ('max_rl', [1., 0., 0., 0., 0., 0., -3., 1.], [0, 0, 0, 0, 1, 1, 2, 2], [3, -1, -1, -1, 0, 0, 0, 0]),
        ('batch_mean', [1., 0., 0.5, 0.5], [0, 1, 2, 3], [0.5, -0.5, 0, 0]),
        ('batch_mean', [1., 0., 0.5, 0.5], [0, 0, 1, 1], [0.5, -0.5, 0, 0]),
        # 1e25^2 is not a number of float32
        ('grpo', [1e25, -1e25], [0, 0], [0.5 ** 0.5, -0.5 ** 0.5]),
    ]
)
def test_by_hand(method, reward, group, expected):
    adv = group_advantage(torch.tensor(reward), torch.tensor(group), method, 0)
    assert adv.tolist() == pytest.approx(expected)


@pytest.mark.parametrize('method', ADVANTAGE_METHODS)
class TestEveryMethod:

    def test_order_and_ids_do_not_matter(self, method):
        reward, group = torch.randn(12), torch.tensor([7, 7, 7, -3, -3, -3, -3, 100, 100, 100, 100, 100])
        order, length = torch.randperm(12), torch.randint(1, 9, (12, ))
        assert torch.allclose(
            group_advantage(reward, group, method, length=length)[order],
            group_advantage(reward[order], group[order], method, length=length[order])
        )

    @pytest.mark.parametrize('rows', [0, 1, 7])
    @pytest.mark.parametrize('value', [0., 1., 0.1, 1e6 + 0.1])
    def test_equal_rewards_are_zero_whatever_rounding_leaves(self, method, value, rows):
        """Also a group of one row, and no row."""
        group = torch.zeros(rows, dtype=torch.long)
        adv = group_advantage(torch.full((rows, ), value), group, method, 1e-12, torch.ones(rows))
        assert torch.equal(adv, torch.zeros(rows))


def test_equal_groups():
    reward = torch.tensor([1., 0., 0.5, 0.5, 0.5])
    assert equal_groups(reward, torch.tensor([0, 0, 1, 1, 2])).tolist() == [False, True, True]
