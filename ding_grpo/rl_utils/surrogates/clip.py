import torch
from torch import Tensor

from .registry import Limits, register_surrogate


@register_surrogate('clip', limits=dict(dual_clip=Limits(1, open_low=True)))
def clip_surrogate(ratio, adv, logp_new, low, high, delta=None, *, dual_clip=None) -> Tensor:
    """min(min(r, delta) A, clip(r, low, high) A), PPO, https://arxiv.org/abs/1707.06347. Without ``delta``, which is of
    https://arxiv.org/abs/2505.07291, the inner minimum is r. With ``dual_clip`` c the objective is at least c A for
    negative A, https://arxiv.org/abs/1912.09729; this equals ``delta`` c above ``high``."""
    capped = ratio if delta is None else ratio.clamp(max=delta)
    objective = torch.min(capped * adv, ratio.clamp(low, high) * adv)
    return objective if dual_clip is None else torch.where(adv < 0, objective.max(dual_clip * adv), objective)
