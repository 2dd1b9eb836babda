"""Advantages in trees, by hand."""
import pytest
import torch

from ding_grpo.rl_utils import group_advantage, nodes, tree_advantage

# Two roots, each divides in two before its second token; row 1 ends there, and row 3 has a third token.
LEADER = torch.tensor([[0, 0, -1], [0, 1, -1], [2, 2, -1], [2, 3, 3]])
RETURN = torch.tensor([1., 0., 0.5, 0.])
GROUP = torch.zeros(4, dtype=torch.long)


@pytest.mark.parametrize('method', ['rloo', 'no_std', 'grpo'])
def test_by_hand(method):
    # roots: 0.5 - 0.25 and 0.25 - 0.5. Leaves minus the mean of the other leaf of their root and the root's baseline:
    # 1 - (0 + 0.25) / 2, 0 - (1 + 0.25) / 2, 0.5 - (0 + 0.5) / 2, 0 - (0.5 + 0.5) / 2
    expected = torch.tensor([[0.25, 0.875, 0], [0.25, -0.625, 0], [-0.25, 0.25, 0], [-0.25, -0.5, -0.5]])
    found = tree_advantage(RETURN, LEADER, GROUP, method)
    if method == 'grpo':
        assert torch.allclose(found, expected / (RETURN.std() + 1e-4))
    else:
        assert torch.equal(found, expected)


def test_branches_of_a_node_may_have_other_numbers_of_rows():
    """As where rows could not be scored: three rows of one root, of which two go on together, and one of another."""
    leader = torch.tensor([[0, 0, 0], [0, 0, 1], [0, 2, 2], [5, 5, 5]])
    found = tree_advantage(torch.tensor([1., 3., 5., 7.]), leader, GROUP)
    # the root 3 - 7; rows 0 and 1 together 2 - (5 + 7) / 2, row 2 alone 5 - (1 + 3 + 7) / 3; then 1 - (3 + 6) / 2 and
    # 3 - (1 + 6) / 2
    expected = torch.tensor([[-4, -4, -3.5], [-4, -4, -0.5], [-4, 4 / 3, 4 / 3], [4, 4, 4]])
    assert torch.allclose(found, expected)


def test_a_part_whose_siblings_are_missing_is_that_before_it():
    leader, returns = LEADER[[0, 2, 3]], RETURN[[0, 2, 3]]
    expected = [[0.75, 0.75, 0], [-0.75, 0, 0], [-0.75, -0.75, -0.75]]
    assert tree_advantage(returns, leader, GROUP[:3]).tolist() == expected


@pytest.mark.parametrize('method', ['rloo', 'no_std', 'grpo'])
def test_without_shared_tokens_it_is_the_advantage_of_a_group(method):
    generator = torch.Generator().manual_seed(2)
    returns, group = torch.rand(12, generator=generator, dtype=torch.double), torch.arange(12) % 3
    leader = torch.arange(12).unsqueeze(1).expand(12, 4).clone()
    leader[5, 2:] = -1
    scale = 1
    if method == 'grpo':
        scale = torch.stack([returns[group == g].std() for g in group]) + 1e-4
    expected = (group_advantage(returns, group, 'rloo') / scale).unsqueeze(1) * (leader >= 0)
    assert torch.allclose(tree_advantage(returns, leader, group, method), expected, atol=1e-12)


def test_groups_and_the_order_of_rows_do_not_matter():
    order = torch.tensor([5, 0, 7, 2, 4, 1, 6, 3])
    returns, leader = torch.cat([RETURN, RETURN * 3 - 1])[order], torch.cat([LEADER, LEADER])[order]
    found = tree_advantage(returns, leader, torch.tensor([4] * 4 + [1] * 4)[order], 'grpo')
    alone = tree_advantage(RETURN, LEADER, GROUP, 'grpo')
    assert torch.allclose(found[order.argsort()][:4], alone)
    assert torch.allclose(found[order.argsort()][4:], tree_advantage(RETURN * 3 - 1, LEADER, GROUP, 'grpo'))


def test_equal_returns_and_what_all_rows_share_have_exactly_zero():
    leader = torch.tensor([[0], [0], [0], [3]])  # 0.1 + 0.1 + 0.1 is not 0.3
    assert not tree_advantage(torch.full((4, ), 0.1, dtype=torch.double), leader, GROUP).any()
    leader = torch.tensor([[0, 0], [0, 1]])  # nothing to compare the first token with
    assert tree_advantage(torch.tensor([1., 0.]), leader, GROUP[:2]).tolist() == [[0, 1], [0, -1]]


def test_nodes():
    size, total = nodes(RETURN, LEADER, GROUP)
    assert size.tolist() == [[2, 1, 0], [2, 1, 0], [2, 1, 0], [2, 1, 1]]
    assert total.tolist() == [[1, 1, 0], [1, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0]]


def test_no_rows():
    assert tree_advantage(RETURN[:0], LEADER[:0], GROUP[:0]).shape == (0, 3)
