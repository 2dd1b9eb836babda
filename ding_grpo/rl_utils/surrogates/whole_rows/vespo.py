import math

import torch
from torch import Tensor

from ding_grpo.rl_utils.reduce import masked

from ..registry import Limits, register_surrogate

_POSITIVE = Limits(open_low=True)


@register_surrogate(
    'vespo',
    token_ratio=True,
    whole_rows=True,
    limits=dict(k_pos=_POSITIVE, lambda_pos=_POSITIVE, k_neg=_POSITIVE, lambda_neg=_POSITIVE),
)
def vespo_surrogate(
        ratio,
        adv,
        logp_new,
        low,
        high,
        *,
        logp_old,
        weight,
        k_pos=2.0,
        lambda_pos=3.0,
        k_neg=3.0,
        lambda_neg=2.0
) -> Tensor:
    """sg(phi(w)) A log pi with phi(w) = w^k exp(lambda - lambda w), where w is the ratio of the whole row, bounded as
    in TRL, VESPO, https://arxiv.org/abs/2602.10693. ``pos`` is for advantages of at least 0, ``neg`` for others."""
    with torch.no_grad():
        of_tokens = masked((logp_new - logp_old).clamp(-20, 20), weight)
        log_w = of_tokens.sum(1, keepdim=True).clamp(math.log(1e-8), 20)  # (B, 1)
        positive, (k, slope, k_other, slope_other) = adv >= 0, adv.new_tensor([k_pos, lambda_pos, k_neg, lambda_neg])
        k, slope = torch.where(positive, k, k_other), torch.where(positive, slope, slope_other)
        phi = (slope + k * log_w - slope * log_w.exp()).exp()
    return phi * adv * logp_new
