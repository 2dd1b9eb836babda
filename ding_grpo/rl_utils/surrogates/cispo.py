from torch import Tensor

from .registry import register_surrogate


@register_surrogate('cispo', high_alone=True)
def cispo_surrogate(ratio, adv, logp_new, low, high) -> Tensor:
    """sg(min(r, high)) A log pi, CISPO, https://arxiv.org/abs/2506.13585: every token keeps its gradient. As in TRL,
    ``clip_ratio_high`` is ``high`` itself."""
    return ratio.clamp(max=high).detach() * adv * logp_new
