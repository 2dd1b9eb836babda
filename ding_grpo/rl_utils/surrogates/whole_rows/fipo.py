"""
FIPO, https://arxiv.org/abs/2603.19835: the ``clip`` objective of token t times the weight

    f_t = clip(exp F_t, 1 - range_low, 1 + range_high),    F_t = sum over u >= t of gamma^(u - t) log r_u,

which has no gradient. F estimates how far the policy has moved on what follows the token (future KL), and
gamma = 2^(-1 / half_life). At the first step on fresh rows all weights are 1. As in ms-swift, the weight of a token
with A < 0 and r above ``safety`` is limited to [0.8, 1], and with ``dual_clip`` tokens with r above it are left out of
F.
"""

import torch
from torch import Tensor

from ding_grpo.rl_utils.advantage import return_to_go
from ding_grpo.rl_utils.kl import bounded

from ..clip import clip_surrogate
from ..registry import Limits, register_surrogate


@register_surrogate(
    'fipo',
    token_ratio=True,
    whole_rows=True,
    limits=dict(
        half_life=Limits(open_low=True),
        range_low=Limits(high=1),
        range_high=Limits(),
        safety=Limits(1),
        dual_clip=Limits(1, open_low=True)
    ),
)
def fipo_surrogate(
        ratio,
        adv,
        logp_new,
        low,
        high,
        *,
        logp_old,
        weight,
        half_life=32.0,
        range_low=0.0,
        range_high=0.2,
        safety=4.0,
        dual_clip=None
) -> Tensor:
    """The ``clip`` objective times the weight of the token."""
    with torch.no_grad():
        log_ratio = (logp_new - logp_old).masked_fill(weight == 0, 0)
        if dual_clip is not None:
            log_ratio = log_ratio.masked_fill(ratio > dual_clip, 0)
        future = return_to_go(log_ratio, 2 ** (-1 / half_life))  # (B, S)
        influence = bounded(future).exp().clamp(1 - range_low, 1 + range_high)
        influence = torch.where((adv < 0) & (ratio > safety), influence.clamp(0.8, 1), influence)
    return influence * clip_surrogate(ratio, adv, logp_new, low, high, dual_clip=dual_clip)
