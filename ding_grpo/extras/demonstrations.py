"""Supervised tokens in an update (``policy.learn.demonstrations``): right completions of training problems."""
from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch import Tensor

from ding_common import ConfigError
from ding_grpo.data.batch import Batch
from ding_grpo.learn.extra_loss import ExtraLoss, Setting
from ding_grpo.rl_utils import supervised_data, supervised_error


class DemonstrationLoss(ExtraLoss):
    """The loss of demonstrated tokens, which each step draws anew."""
    logged = ('demonstration_nll', )

    def __init__(self, setting: Setting) -> None:
        self._cfg, self._actor = setting.cfg.learn.demonstrations, setting.actor
        self._reduction = setting.loss_config.reduction
        self._examples: Any = None  # of the environment
        self._shown: Optional[Tuple[Tensor, Tensor]] = None  # log-probabilities and weights of the last step

    def bind(self, spec: Any) -> None:
        """Raises ``ConfigError`` if the task does not reward its own demonstrations."""
        examples = getattr(spec, 'demonstrations', None)
        if examples is not None and self._examples is None:
            examples.check(0)
            self._examples = examples

    def draw(self, rows: int, seed: int) -> Batch:
        """``share`` times ``rows`` demonstrations, at least one, of problems drawn with replacement."""
        if self._examples is None:
            raise ConfigError(
                f'policy.learn.demonstrations.share = {self._cfg.share}: the environment has no demonstrations. Use '
                'token_env, or set it to 0.'
            )
        number = max(1, round(self._cfg.share * rows))
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randint(len(self._examples), (number, ), generator=generator).tolist()
        return Batch.of([_group_of_one(self._examples[index]) for index in drawn])

    def learn_more(self, rows: int, seed: int, learn: Callable) -> Tensor:
        batch = self.draw(rows, seed)
        tokens = batch.weight.sum().item() if self._reduction == 'token' else None  # as in ``Updater.step``
        batch, logp = learn(batch, lambda logp, part: self._loss(logp, part.weight, tokens)[0], tokens is None)
        self._shown = logp, batch.weight
        return logp

    def metrics(self, total_loss: float, batch: Batch, read: Dict[str, Tensor]) -> Dict[str, float]:
        loss, info = self._loss(*self._shown)
        return dict(demonstration_nll=info.nll, total_loss=total_loss + loss.item())

    def _loss(self, logp: Tensor, weight: Tensor, tokens: Optional[float] = None) -> Tuple:
        """The loss of demonstrated tokens (B, S), times its weight, and its info."""
        loss, info = supervised_error(supervised_data(logp, weight), self._reduction, self._actor.max_length, tokens)
        return self._cfg.weight * loss, info


def _group_of_one(example: Dict[str, Any]) -> Dict[str, Any]:
    """A demonstration in the form of a group of one row."""
    ids, labels = example['input_ids'], example['labels']
    start = next(i for i, label in enumerate(labels) if label >= 0)
    action, own = torch.tensor([ids[start:]]), torch.tensor([labels[start:]]) >= 0  # (1, S)
    flag = torch.zeros(1)
    return dict(
        prompt=torch.tensor(ids[:start]),
        action=action,
        weight=own.float(),
        length=torch.tensor([action.shape[1]]),
        turn=torch.zeros_like(action),
        anchor=torch.full((1, 1), -1),
        logp_old=torch.zeros(action.shape),
        reward=torch.zeros(action.shape),
        reward_parts={},
        truncated=flag,
        failed=flag,
    )
