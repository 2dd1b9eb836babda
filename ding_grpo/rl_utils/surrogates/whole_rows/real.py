"""
REAL, https://arxiv.org/abs/2602.05630: rewards as labels of a classification. With s the mean over the row of log r,
divided by ``tau``, a group that has rows of both labels has the loss

    log(1 + sum over negative rows of exp(s)) + log(1 + sum over positive rows of exp(-s)),

and any other group 0. Each row's part of the gradient is at most 1 / tau. As in ms-swift, a row is positive if its
advantage is; with rewards of 0 and 1 these are the right ones. The loss is the mean over rows of that of their group.
"""
import torch
from torch import Tensor

from ding_grpo.rl_utils.reduce import row_mean

from ..registry import Limits, register_surrogate


@register_surrogate(
    'real', token_ratio=True, of_row=True, whole_rows=True, of_batch=True, limits=dict(tau=Limits(open_low=True))
)
def real_surrogate(ratio, adv, logp_new, low, high, *, logp_old, weight, group, tau=0.5) -> Tensor:
    """(B, 1): minus the loss of the row's group."""
    score = row_mean(logp_new - logp_old, weight) / tau  # (B, )
    positive = row_mean(adv.expand_as(logp_new), weight) > 0
    counts = (weight != 0).any(1)
    numbers, member = group.unique(return_inverse=True)
    own = (member == torch.arange(len(numbers), device=group.device).unsqueeze(1)) & counts  # (P, B)
    losses = []
    for rows, signed in ((own & ~positive, score), (own & positive, -score)):
        of_rows = signed.expand(own.shape).masked_fill(~rows, float('-inf'))
        losses.append(torch.cat([of_rows, of_rows.new_zeros(len(own), 1)], dim=1).logsumexp(1))  # (P, )
    both = (own & positive).any(1) & (own & ~positive).any(1)
    return -(losses[0] + losses[1]).masked_fill(~both, 0)[member].unsqueeze(1)
