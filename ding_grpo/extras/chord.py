"""
CHORD, https://arxiv.org/abs/2508.11408: demonstrations that take turns with the policy's own loss by a schedule mu of
updates (``policy.learn.demonstrations.schedule``), and weigh each token by phi:

    L = (1 - mu) L_policy + mu L_demonstrations,    L_demonstrations = reduced -phi log p,    phi = sg(p (1 - p))

L_policy includes the KL and the entropy bonus. phi is largest for a token of probability 1/2: neither what the policy
knows nor what would disrupt it. mu rises to ``peak`` in a warm-up, and falls as a cosine to ``valley``. Departures: mu
counts updates; a demonstration's loss has the policy's reduction (ms-swift: the mean over tokens).
"""
import math
from typing import Any, Dict, Optional, Tuple

from torch import Tensor

from ding_grpo.data.batch import Batch
from ding_grpo.learn.extra_loss import Setting
from ding_grpo.rl_utils import supervised_data, supervised_error

from .demonstrations import DemonstrationLoss


def share_of(update: int, warmup: int, decay: int, peak: float, valley: float) -> float:
    """mu of an update, given the number of earlier ones."""
    if update < warmup:
        return peak * update / warmup
    if update >= warmup + decay:
        return valley
    return valley + (peak - valley) * (1 + math.cos(math.pi * (update - warmup) / decay)) / 2


class ChordLoss(DemonstrationLoss):
    """Demonstrations with the share mu in the loss of an update."""
    logged = ('demonstration_nll', 'demonstration_share')

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._mu = 0.0

    def begin(self, update: int) -> None:
        schedule = self._cfg.schedule
        self._mu = share_of(update, schedule.warmup, schedule.decay, schedule.peak, schedule.valley)

    def add(self, loss: Tensor, part: Batch, found: Any, tokens: Optional[float], share: float) -> Tensor:
        return (1 - self._mu) * loss

    def metrics(self, total_loss: float, batch: Batch, read: Dict[str, Tensor]) -> Dict[str, float]:
        found = super().metrics((1 - self._mu) * total_loss, batch, read)
        return dict(found, demonstration_share=self._mu)

    def _loss(self, logp: Tensor, weight: Tensor, tokens: Optional[float] = None) -> Tuple:
        loss, info = supervised_error(
            supervised_data(logp, weight), self._reduction, self._actor.max_length, tokens, self._cfg.schedule.phi
        )
        return self._mu * loss, info
