"""
A preference loss beside the policy's (``policy.learn.preference``): DPO, https://arxiv.org/abs/2305.18290, of the best
row of each group against the worst, among rows that the policy sampled. ``preference_error`` has the formula.
"""
from typing import Any, Dict, Optional, Tuple

from torch import Tensor

from ding_common import ConfigError, parallel
from ding_grpo.data.batch import Batch
from ding_grpo.learn.extra_loss import ExtraLoss, Setting
from ding_grpo.rl_utils import preference_data, preference_error


class PreferenceLoss(ExtraLoss):
    """The loss of the pairs of a mini-batch, times its weight."""
    undivided = True
    logged = ('preference_loss', 'preference_accuracy', 'preference_pairs')

    def __init__(self, setting: Setting) -> None:
        self._cfg = setting.cfg.learn.preference
        if parallel.world_size() > 1:
            raise ConfigError(
                f'policy.learn.preference.weight = {self._cfg.weight}: not available in several processes, which '
                'divide the rows of a group. Use one, or set it to 0.'
            )

    def bind(self, spec: Any) -> None:
        if getattr(spec, 'trajectories', False):
            raise ConfigError(
                f'policy.learn.preference.weight = {self._cfg.weight}: not available with an agent, whose rows may '
                'have different prompts. Set it to 0.'
            )

    def add(self, loss: Tensor, part: Batch, found: Any, tokens: Optional[float], share: float) -> Tensor:
        return loss + self._cfg.weight * self._loss(part, found.logp)[0]

    def metrics(self, total_loss: float, batch: Batch, read: Dict[str, Tensor]) -> Dict[str, float]:
        loss, info = self._loss(batch, read['logp'])
        return dict(
            total_loss=total_loss + self._cfg.weight * loss.item(),
            preference_loss=loss.item(),
            preference_accuracy=info.accuracy,
            preference_pairs=info.pairs
        )

    def _loss(self, batch: Batch, logp: Tensor) -> Tuple:
        sampler = batch.logp_old if batch.logp_first is None else batch.logp_first
        reference = sampler if self._cfg.reference == 'sampler' else batch.logp_ref
        data = preference_data(logp, reference, batch.weight, batch.reward.sum(1), batch.group)
        return preference_error(data, self._cfg.beta)
