"""
ECHO, https://arxiv.org/abs/2605.24517: the policy also learns to predict what the environment replies to it
(``policy.learn.environment_tokens``), from the same forward pass:

    L = L_policy + weight * L_env,    L_env = mean of -log pi over tokens of the environment

The paper leaves out replies that are warnings of its own harness; here all tokens of replies count. The distribution is
that of sampling: with its temperature, over the whole vocabulary.
"""
from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor

from ding_common import ConfigError
from ding_grpo.data.batch import Batch
from ding_grpo.learn.extra_loss import ExtraLoss, Setting
from ding_grpo.model import PromptBatch
from ding_grpo.model.read.completions import States
from ding_grpo.model.read.output_head import OutputHead
from ding_grpo.rl_utils import linear_log_prob, supervised_data, supervised_error


def of_environment(batch: Batch) -> Tensor:
    """1 on tokens of the environment in rows that are learned from, else 0, (B, S)."""
    step = torch.arange(batch.weight.shape[1], device=batch.weight.device)
    replies = (batch.weight == 0) & (step < batch.length.unsqueeze(1))
    return (replies & (batch.weight != 0).any(1, keepdim=True)).to(batch.weight.dtype)


class EnvironmentLoss(ExtraLoss):
    """The negative log-probability of the environment's tokens, times its weight, with the policy's reduction."""
    reads = ('divergence', )  # where ``compare`` puts what it finds
    logged = ('environment_nll', )

    def __init__(self, setting: Setting) -> None:
        self._cfg, self._actor = setting.cfg.learn.environment_tokens, setting.actor
        self._reduction = setting.loss_config.reduction

    def heads(self) -> Dict[str, Any]:
        return dict(teacher=self)

    def compare(
            self, batch: Batch, prompts: PromptBatch, logp: Tensor, states: States, head: OutputHead, temperature: float
    ) -> Tuple[Tensor, Tensor]:
        """Log-probabilities of the tokens of ``of_environment`` (B, S), and zeros. ``states`` are before each token."""
        hidden = states.of_tokens()  # (B, S, H)
        found = linear_log_prob(
            hidden, index=batch.action, mask=of_environment(batch), temperature=temperature, **head._asdict()
        )
        return found, torch.zeros_like(logp)

    def bind(self, spec: Any) -> None:
        if spec.max_turns == 1:
            raise ConfigError(
                f'policy.learn.environment_tokens.weight = {self._cfg.weight}: needs env.max_turns above 1, because an '
                'environment of one turn replies nothing. Set it to 0.'
            )

    def add(self, loss: Tensor, part: Batch, found: Any, tokens: Optional[float], share: float) -> Tensor:
        return loss + self._loss(part, found.divergence, tokens)[0] * share

    def metrics(self, total_loss: float, batch: Batch, read: Dict[str, Tensor]) -> Dict[str, float]:
        tokens = batch.weight.sum().item() if self._reduction == 'token' else None
        loss, info = self._loss(batch, read['divergence'], tokens)
        return dict(environment_nll=info.nll, total_loss=total_loss + loss.item())

    def _loss(self, batch: Batch, logp: Tensor, tokens: Optional[float]) -> Tuple:
        """The loss of rows, times its weight, and its info. With ``reduction='token'`` the sum is divided by the number
        of the policy's tokens, as that of the policy's loss."""
        data = supervised_data(logp, of_environment(batch))
        loss, info = supervised_error(data, self._reduction, self._actor.max_length, tokens)
        return self._cfg.weight * loss, info
