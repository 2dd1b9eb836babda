"""
Direct preference optimization, https://arxiv.org/abs/2305.18290 eq. 7, of pairs within a group: the row of the highest
reward is preferred to that of the lowest. With the log-ratio h = sum over tokens of log pi - log pi_ref, the loss of a
pair is -log sigmoid(beta (h_best - h_worst)). Departures:

1. A group of equal rewards has no pair and counts as 0, as in the policy's loss: the mean is over groups, not pairs.
2. Among equal rewards the first row counts.
"""
from collections import namedtuple
from typing import Tuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .advantage import check_groups
from .check import check_leading, check_number, check_tensor
from .reduce import masked

preference_data = namedtuple('preference_data', ['logp', 'logp_ref', 'weight', 'reward', 'group'])
preference_data.__doc__ = """Inputs of ``preference_error``: log-probabilities under the policy and the reference, and
weights, (B, S) each; reward and group of each row, (B, )."""
preference_info = namedtuple('preference_info', ['accuracy', 'pairs'])
preference_info.__doc__ = """Share of the pairs whose better row gained more probability, 0 without a pair; share of the
groups that have a pair."""


def preference_error(data: preference_data, beta: float = 0.1) -> Tuple[Tensor, preference_info]:
    """
    Overview:
        The loss of a batch of whole groups. A row in which no token counts is left out.
    Arguments:
        - beta (:obj:`float`): Coefficient of the log-ratio, positive. The larger, the less the policy moves for a pair.
    """
    check_leading('logp', data.logp, '(B, S)')
    for name in ('logp_ref', 'weight'):
        check_tensor(name, getattr(data, name), tuple(data.logp.shape), '(B, S)', 'numbers')
    check_groups(data.reward, data.group)
    check_number('beta', beta, open_low=True)
    log_ratio = masked(data.logp - data.logp_ref, data.weight).sum(1)  # (B, )
    best, worst, groups = best_and_worst(data.reward, data.group, (data.weight != 0).any(1))
    margin = beta * (log_ratio[best] - log_ratio[worst])  # (K, )
    loss = -logsigmoid(margin).sum() / max(groups, 1)
    right = (margin.detach() > 0).double().mean().item() if len(best) > 0 else 0.
    return loss, preference_info(right, len(best) / max(groups, 1))


def best_and_worst(reward: Tensor, group: Tensor, counts: Tensor) -> Tuple[Tensor, Tensor, int]:
    """The rows of the highest and of the lowest reward (K, ) of each group in which they differ, among the rows that
    count (B, ), and the number of groups with such rows."""
    rows = counts.nonzero().squeeze(1)
    numbers, member = group[rows].unique(return_inverse=True)
    pairs = []
    for number in range(len(numbers)):
        own = rows[member == number]
        best, worst = own[reward[own].argmax()], own[reward[own].argmin()]
        if reward[best] > reward[worst]:
            pairs.append(torch.stack([best, worst]))
    found = torch.stack(pairs, dim=1) if pairs else rows.new_zeros(2, 0)
    return found[0], found[1], len(numbers)
