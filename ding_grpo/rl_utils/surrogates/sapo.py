import torch
from torch import Tensor

from .registry import register_surrogate


@register_surrogate('sapo')
def sapo_surrogate(ratio, adv, logp_new, low, high) -> Tensor:
    """(4 / t) sigmoid(t (r - 1)) A, t = 1 for positive and 1.05 for other A, SAPO, https://arxiv.org/abs/2511.20347. A
    soft gate in place of a clipping range."""
    temperature = torch.where(adv > 0, 1.0, 1.05).to(ratio.dtype)
    return torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature * adv
