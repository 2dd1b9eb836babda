"""Advantages of rows that share their beginnings."""
from typing import NamedTuple

import torch
from torch import Tensor

from .advantage import STEP_ADVANTAGE_METHODS, check_groups, equal_groups, sum_of_group
from .check import check_choice, check_number, check_tensor

# Rows that the baseline of the node before counts as. 0 would be the siblings alone, whose mean is noisy (docs/results/
# gradients.md); larger numbers gain little where late tokens decide, and lose where early ones do.
PRIOR = 1.0


class Nodes(NamedTuple):
    """For each token of B rows, over the rows of its group that share it."""
    size: Tensor  # (B, S), their number, 0 where a row has no token
    total: Tensor  # (B, S), the sum of their returns


def tree_advantage(return_: Tensor, leader: Tensor, group: Tensor, method: str = 'rloo', eps: float = 1e-4) -> Tensor:
    """
    Overview:
        Advantage of each token in a group whose rows share their beginnings, a tree. Rows that share a token are a \
        node, whose value is the mean of their returns. The rows before it that do not share it, its siblings, are \
        samples of the policy from where the node begins, and independent of it:

        - ``rloo``, ``no_std``: value of the node - baseline, the mean return of its siblings, in which the baseline \
          of the node before it counts as one more row: two branches have few siblings, and all rows further out are \
          independent of the token too. With the loss's sum over the rows of a node this is the gradient of the \
          expected return, without a bias.
        - ``grpo``: the same / (standard deviation of the group's returns + eps).

        The advantage of a token lasts until rows divide. A group without shared tokens has that of ``rloo`` in \
        ``group_advantage``.
    Arguments:
        - return_ (:obj:`torch.FloatTensor`): Return of each row.
        - leader (:obj:`torch.LongTensor`): A number for each token, equal for rows of a group that share it; -1 after \
            the end of a row.
        - eps (:obj:`float`): Added to the standard deviation.
    Shapes:
        - return_, group: :math:`(B, )`
        - leader, adv: :math:`(B, S)`
    """
    check_choice('method', method, STEP_ADVANTAGE_METHODS)
    check_groups(return_, group)
    check_tensor('leader', leader, (len(return_), leader.shape[1]), '(B, S)', 'int64')
    check_number('eps', eps)
    if leader.numel() == 0:
        return torch.zeros(leader.shape, dtype=return_.dtype, device=return_.device)
    _, member = torch.unique(group, return_inverse=True)  # (B, )
    reward = return_.double()
    whole = torch.zeros_like(leader[:, :1])  # the node before all tokens
    size, total = nodes(reward, torch.cat([whole, leader], dim=1), member)  # (B, 1 + S)
    divides = (size[:, 1:] < size[:, :-1]) & (leader >= 0)  # (B, S): whether rows before a token do not share it
    adv = total[:, 1:] / size[:, 1:].clamp(min=1) - _baseline(size, total, divides)
    adv = adv.masked_fill((leader < 0) | (divides.cumsum(1) == 0), 0)
    adv = adv.masked_fill(equal_groups(reward, member)[member].unsqueeze(1), 0)  # exactly 0 for equal returns
    if method == 'grpo':
        count, mean = size[:, 0], total[:, 0] / size[:, 0]
        square = sum_of_group((reward - mean).square(), member)
        scale = (square / (count - 1).clamp(min=1)).sqrt() + eps
        adv = adv / scale.masked_fill(scale == 0, 1).unsqueeze(1)
    return adv.to(return_.dtype)


def nodes(reward: Tensor, leader: Tensor, group: Tensor) -> Nodes:
    """The nodes of the tokens of rows with these returns, see ``tree_advantage``."""
    present = leader >= 0
    place = torch.arange(leader.shape[1], device=leader.device).expand_as(leader)
    key = torch.stack([group.unsqueeze(1).expand_as(leader)[present], place[present], leader[present]], dim=1)  # (M, 3)
    _, node = key.unique(dim=0, return_inverse=True)  # (M, )
    of_tokens = reward.unsqueeze(1).expand(leader.shape)[present]  # (M, )
    number = int(node.max()) + 1 if len(node) else 0

    def of_nodes(x: Tensor) -> Tensor:
        return x.new_zeros(leader.shape).masked_scatter(present, x.new_zeros(number).index_add(0, node, x)[node])

    return Nodes(of_nodes(torch.ones_like(of_tokens)), of_nodes(of_tokens))


def _baseline(size: Tensor, total: Tensor, divides: Tensor) -> Tensor:
    """The baseline of each token, (B, S), from the nodes before and after each token (B, 1 + S), and whether they are
    different (B, S)."""
    baseline = torch.zeros_like(total[:, 1:])
    last, counts = total.new_zeros(2, len(total))  # (B, ) each: of the node before, and the rows that it counts as
    for t in divides.any(0).nonzero().squeeze(1).tolist():
        rows = divides[:, t].nonzero().squeeze(1)
        others, sum_of_others = (x[rows, t] - x[rows, t + 1] for x in (size, total))
        last[rows] = (sum_of_others + counts[rows] * last[rows]) / (others + counts[rows])
        counts[rows] = PRIOR
        baseline[rows, t:] = last[rows].unsqueeze(1)
    return baseline
