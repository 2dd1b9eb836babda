"""Surrogates: the objective of each token, as a function of the importance ratio and the advantage."""
from typing import Callable, Dict, Optional

import torch
from torch import Tensor

# (ratio, adv, logp_new, low, high) -> objective of each token, to be maximised; low and high bound the ratio.
Surrogate = Callable[[Tensor, Tensor, Tensor, float, float], Tensor]


def clip_surrogate(
        ratio: Tensor, adv: Tensor, logp_new: Tensor, low: float, high: float, delta: Optional[float] = None
) -> Tensor:
    """min(min(r, delta) A, clip(r, low, high) A), https://arxiv.org/abs/1707.06347; no bound for ``delta`` None."""
    bounded = ratio if delta is None else ratio.clamp(max=delta)
    return torch.min(bounded * adv, ratio.clamp(low, high) * adv)


def cispo_surrogate(ratio: Tensor, adv: Tensor, logp_new: Tensor, low: float, high: float) -> Tensor:
    """sg(min(r, high)) A log pi, https://arxiv.org/abs/2506.13585: every token keeps its gradient."""
    return ratio.clamp(max=high).detach() * adv * logp_new


def sapo_surrogate(ratio: Tensor, adv: Tensor, logp_new: Tensor, low: float, high: float) -> Tensor:
    """(4 / t) sigmoid(t (r - 1)) A, t = 1 for positive and 1.05 for other A, https://arxiv.org/abs/2511.20347."""
    temperature = torch.where(adv > 0, 1.0, 1.05).to(ratio.dtype)
    return torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature * adv


SURROGATES: Dict[str, Surrogate] = dict(clip=clip_surrogate, cispo=cispo_surrogate, sapo=sapo_surrogate)
