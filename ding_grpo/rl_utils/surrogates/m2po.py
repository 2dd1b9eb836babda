"""
M2PO, https://arxiv.org/abs/2510.01161: the clipping range follows the tokens that clipping acts on, those with r > 1
and A > 0 or r < 1 and A < 0. It is [1 / c, c] with the largest c for which the mean of their squared log-ratios, each
limited to (log c)^2, is below ``budget``, and never smaller than the clipping range of the config. As in the authors'
code, (log c)^2 is the value of one of these tokens, which is clipped itself.
"""
import math

import torch
from torch import Tensor

from .clip import clip_surrogate
from .registry import Limits, register_surrogate

JUST = 1e-12  # by which limits are exceeded, as in the authors' code


@register_surrogate('m2po', token_ratio=True, of_batch=True, limits=dict(budget=Limits(open_low=True)))
def m2po_surrogate(ratio, adv, logp_new, low, high, *, logp_old, weight, budget=0.04) -> Tensor:
    """The ``clip`` objective with that range."""
    with torch.no_grad():
        log_ratio = (logp_new - logp_old).masked_fill(weight == 0, 0)
        limit = largest_log_ratio(log_ratio[log_ratio * adv > 0], budget)
    return clip_surrogate(ratio, adv, logp_new, min(low, math.exp(-limit)), max(high, math.exp(limit)))


def largest_log_ratio(log_ratio: Tensor, budget: float) -> float:
    """log c, given the log-ratios (N, ) of tokens that may be clipped; infinite if their mean square is within the
    budget."""
    squares = log_ratio.square().sort().values
    if len(squares) == 0 or squares.mean() <= budget:
        return math.inf
    larger = torch.arange(len(squares) - 1, -1, -1, device=squares.device)
    limited = (squares.cumsum(0) + larger * squares) / len(squares)  # the mean, if all are limited to each of them
    fits = int((limited < budget).sum())
    return math.sqrt(max(squares[fits - 1].item() - JUST, 0)) if fits > 0 else 0.0
