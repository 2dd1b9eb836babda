import torch
from torch import Tensor

from ding_grpo.rl_utils.kl import bounded
from ding_grpo.rl_utils.reduce import row_mean

from ..registry import register_surrogate


@register_surrogate('geo_mean', token_ratio=True, of_row=True, whole_rows=True)
def geo_mean_surrogate(ratio, adv, logp_new, low, high, *, logp_old, weight) -> Tensor:
    """(B, 1): A exp(mean of the row's log r), GMPO, https://arxiv.org/abs/2507.20673. The clipping range bounds log r
    in the direction of A. A is the row's mean advantage."""
    log_ratio = logp_new - logp_old
    clipped = torch.where(adv > 0, log_ratio.clamp(max=high - 1), log_ratio.clamp(min=low - 1)) * (adv != 0)
    objective = row_mean(adv.expand_as(logp_new), weight) * bounded(row_mean(clipped, weight)).exp()
    return objective.unsqueeze(1)
