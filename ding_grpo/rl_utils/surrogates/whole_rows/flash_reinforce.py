"""
FlashREINFORCE, https://github.com/yifanzhang-pro/FlashREINFORCE (Hu et al., 2026): REINFORCE on one row of each prompt,
which may be old. Rows on which the policy has moved further than ``delta`` are left out. With p the probability of a
token when it was sampled and q the one now, the measure is the mean over the row of

    d = p log(p / q) + (1 - p) log((1 - p) / (1 - q)),

the KL between taking the token and any other. Its advantage is ``batch_mean``. Its filter of tokens of failed rows by
entropy is not here.
"""
import torch
from torch import Tensor

from ding_grpo.rl_utils.reduce import row_mean

from ..registry import Limits, register_surrogate

LEAST = 1e-6  # probabilities are at least this, and at most 1 minus it, as in the authors' code


@register_surrogate(
    'flash_reinforce', token_ratio=True, whole_rows=True, probabilities=True, limits=dict(delta=Limits())
)
def flash_reinforce_surrogate(ratio, adv, logp_new, low, high, *, logp_old, weight, delta=3e-3) -> Tensor:
    """sg(r) A log pi in rows whose mean d is at most ``delta``, 0 in others. Nothing is clipped."""
    with torch.no_grad():
        p, q = (x.exp().clamp(LEAST, 1 - LEAST) for x in (logp_old, logp_new))
        divergence = p * (p.log() - q.log()) + (1 - p) * (torch.log1p(-p) - torch.log1p(-q))
        admitted = row_mean(divergence, weight) <= delta  # (B, )
    return torch.where(admitted.unsqueeze(1), ratio, 0).detach() * adv * logp_new
