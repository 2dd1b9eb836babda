from torch import Tensor

from .registry import register_surrogate


@register_surrogate('gpg', token_ratio=True)
def gpg_surrogate(ratio, adv, logp_new, low, high) -> Tensor:
    """A log pi, the plain policy gradient of GPG, https://arxiv.org/abs/2504.02546. No ratio, nothing is clipped."""
    return adv * logp_new
