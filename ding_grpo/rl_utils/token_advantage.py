"""Advantages of single tokens that do not compare whole rows of a group."""
from typing import Optional

import torch
from torch import Tensor

from .advantage import check_groups, extreme, sum_of_group, whiten
from .check import check_choice, check_leading, check_number, check_tensor

TOKEN_ADVANTAGE_METHODS = ('reinforce_plus_plus', 'optimal_token_baseline', 'remax')


def token_advantage(
        return_: Tensor,
        weight: Tensor,
        method: str,
        group: Optional[Tensor] = None,
        score_norm: Optional[Tensor] = None,
        baseline: Optional[Tensor] = None,
) -> Tensor:
    """
    Overview:
        Advantage of each token from the return from it on. With return R_t:

        - ``reinforce_plus_plus``: R_t, normalised to mean 0 and variance 1 over all tokens. It compares no groups. \
          https://arxiv.org/abs/2501.03262.
        - ``optimal_token_baseline``: R_t - sum(W_t R_t) / sum(W_t) over the rows of the group that have token t. W_t \
          is the sum of ``score_norm`` over the row's tokens up to t: the baseline of least variance for the sum of \
          their gradients. Where one row alone has a token t, the baseline is 0, as in verl. A group whose returns are \
          all equal carries no information, and its advantage is 0.
        - ``remax``: R_t - ``baseline``, https://arxiv.org/abs/2310.10505.
    Arguments:
        - score_norm (:obj:`Optional[torch.FloatTensor]`): Squared norm of the gradient of each token's \
            log-probability with respect to the logits, 1 - 2 p + sum of squares of all probabilities, for \
            ``optimal_token_baseline``.
        - baseline (:obj:`Optional[torch.FloatTensor]`): Reward of a greedy completion of each row's prompt, for \
            ``remax``.
    Shapes:
        - return_, weight, score_norm, adv (:obj:`torch.FloatTensor`): :math:`(B, S)`
        - group, baseline: :math:`(B, )`
    """
    check_choice('method', method, TOKEN_ADVANTAGE_METHODS)
    check_leading('return_', return_, '(B, S)')
    shape = tuple(return_.shape)
    check_tensor('weight', weight, shape, '(B, S)', 'numbers')
    counted = weight != 0
    values = return_.double().masked_fill(~counted, 0)
    if method == 'remax':
        check_tensor('baseline', baseline, shape[:1], '(B, )')
        adv = values - baseline.double().unsqueeze(1)
    elif method == 'reinforce_plus_plus':
        adv = whiten(values, counted.double())
    else:
        check_groups(return_.sum(1), group)
        check_tensor('score_norm', score_norm, shape, '(B, S)')
        adv = _over_optimal_baseline(values, counted, group, score_norm.double().masked_fill(~counted, 0))
    return adv.masked_fill(~counted, 0).to(return_.dtype)


def _over_optimal_baseline(values: Tensor, counted: Tensor, group: Tensor, score_norm: Tensor) -> Tensor:
    """Returns minus the optimal baseline, (B, S); all tensors in float64 and 0 where no token counts."""
    if values.numel() == 0:
        return values
    _, member = torch.unique(group, return_inverse=True)  # (B, ) in 0 .. P - 1
    paths = score_norm.cumsum(1) * counted
    total, weighted, rows = (sum_of_group(x, member) for x in (paths, paths * values, counted.double()))  # (B, S) each
    baseline = weighted / (total + 1e-8)  # 1e-8 as in verl
    low, high = (  # (B, S) each: smallest and largest return of the group's rows at t
        extreme(values.masked_fill(~counted, none), member, kind)[member]
        for none, kind in ((float('inf'), 'amin'), (float('-inf'), 'amax'))
    )
    same = (low == high) & (rows > 1)
    equal = low.amin(1, keepdim=True) == high.amax(1, keepdim=True)
    return torch.where(rows > 1, values - baseline, values).masked_fill(same | equal, 0)


def high_entropy(entropy: Tensor, weight: Tensor, share: float) -> Tensor:
    """
    Overview:
        The tokens whose entropy is among the highest of all tokens that count. Learning from these alone: \
        https://arxiv.org/abs/2506.01939.
    Arguments:
        - share (:obj:`float`): Share of the tokens, in (0, 1], rounded to a whole number of at least one. Tokens of \
            equal entropy are all included.
    Shapes:
        - entropy, weight, high: :math:`(B, S)`
    """
    check_leading('entropy', entropy, '(B, S)')
    check_tensor('weight', weight, tuple(entropy.shape), '(B, S)', 'numbers')
    check_number('share', share, open_low=True, high=1)
    values = entropy[weight != 0]  # (N, )
    if values.numel() == 0:
        return torch.zeros_like(entropy, dtype=torch.bool)
    least = values.topk(max(1, round(share * len(values)))).values[-1]
    return (entropy >= least) & (weight != 0)
