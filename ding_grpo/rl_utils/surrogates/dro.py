from torch import Tensor

from .registry import Limits, register_surrogate


@register_surrogate('dro', token_ratio=True, limits=dict(beta=Limits()))
def dro_surrogate(ratio, adv, logp_new, low, high, *, logp_old, beta=0.1) -> Tensor:
    """A log pi - beta / 2 (log r)^2, as in verl after DRO, https://arxiv.org/abs/2405.19107."""
    return adv * logp_new - beta / 2 * (logp_new - logp_old) ** 2
