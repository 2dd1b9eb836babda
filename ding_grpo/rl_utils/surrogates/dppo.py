"""DPPO, https://arxiv.org/abs/2602.04879: trust regions of probabilities in place of ratios, as in verl."""
import torch
from torch import Tensor

from .registry import Limits, register_surrogate


@register_surrogate('dppo_tv', token_ratio=True, probabilities=True, limits=dict(ratio_cap=Limits(1)))
def dppo_tv_surrogate(ratio, adv, logp_new, low, high, *, logp_old, ratio_cap=20.0) -> Tensor:
    """sg(min(r, cap)) A log pi, and 0 for a token whose probability has already moved in the direction of A by more
    than the clipping range, the total variation between taking the token and any other."""
    moved = (logp_new.exp() - logp_old.exp()).detach()
    inside = torch.where(adv > 0, moved <= high - 1, moved >= low - 1)
    return ratio.clamp(max=ratio_cap).detach() * adv * logp_new * inside


@register_surrogate('dppo_kl', token_ratio=True, probabilities=True, limits=dict(ratio_cap=Limits(1)))
def dppo_kl_surrogate(ratio, adv, logp_new, low, high, *, logp_old, ratio_cap=20.0) -> Tensor:
    """As ``dppo_tv``, where the clipping range bounds KL(old || new) between taking the token and any other."""
    with torch.no_grad():
        old, new = logp_old.exp(), logp_new.exp()
        others = ((1 - old).clamp(min=0) + 1e-8).log() - ((1 - new).clamp(min=0) + 1e-8).log()  # 1e-8 as in verl
        divergence = old * (logp_old - logp_new) + (1 - old) * others
        risen = torch.where(adv > 0, new > old, new < old)  # in the direction of A
        inside = ~risen | (divergence <= torch.where(adv > 0, high - 1, 1 - low))
    return ratio.clamp(max=ratio_cap).detach() * adv * logp_new * inside
