import math

import torch
from torch import Tensor

from ding_grpo.rl_utils.kl import kl_estimate

from .registry import Limits, register_surrogate


@register_surrogate('cpgd', token_ratio=True, limits=dict(drift=Limits()))
def cpgd_surrogate(ratio, adv, logp_new, low, high, *, logp_old, drift=0.0) -> Tensor:
    """A log pi, without a gradient once r has left the clipping range in the direction of A, minus ``drift`` times the
    estimate r - 1 - log r of KL(old || new), CPGD, https://arxiv.org/abs/2505.12504. Departures: the paper clips the
    policy drift too; the default is no drift, as in LightRFT."""
    most, least = logp_old + math.log(high), logp_old + (math.log(low) if low > 0 else -math.inf)
    objective = adv * torch.where(adv > 0, logp_new.min(most), logp_new.max(least))
    return objective if drift == 0 else objective - drift * kl_estimate(logp_old, logp_new, 'k3')
