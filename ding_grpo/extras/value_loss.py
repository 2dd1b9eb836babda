"""What a critic adds to an update: values and advantages of a batch, a loss, and a warm-up."""
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from ding_grpo.act.critic import Critic, head_of
from ding_grpo.data.batch import Batch
from ding_grpo.learn.extra_loss import ExtraLoss, Setting
from ding_grpo.rl_utils import explained_variance, gae_advantage, ppo_value_data, value_error


class ValueLoss(ExtraLoss):
    """Trains ``critic`` beside the policy, with the reduction of the policy's loss."""

    reads = ('value', )
    logged = ('value_loss', 'value_clipfrac', 'explained_variance')

    def __init__(self, setting: Setting, critic: Optional[Critic] = None) -> None:
        """``critic``: None makes the one of the config."""
        self._cfg = cfg = setting.cfg.learn
        self._discount_factor, self._reduction = setting.cfg.collect.discount_factor, setting.loss_config.reduction
        self._actor, self._model = setting.actor, setting.model
        self.critic = setting.actor.make_critic(cfg) if critic is None else critic
        self._weight, self._gae_lambda = cfg.critic.value_weight, cfg.critic.gae_lambda
        self._alone = False  # during ``value_warmup``

    def begin(self, update: int) -> None:
        self._alone = update < self._cfg.critic.value_warmup

    def heads(self) -> Dict[str, Any]:
        return dict(critic=self.critic)

    def parameters(self) -> List[nn.Parameter]:
        return [p for p in self.critic.parameters() if p.requires_grad]

    def bind(self, spec: Any) -> None:
        if self.critic.model is not None:
            self._actor.bind_reference(self.critic.model)

    @torch.no_grad()
    def prepare(self, batch: Batch, read_rows: Callable) -> Batch:
        """The batch with the critic's values, its targets, and the advantages before normalisation."""
        value = read_rows(lambda part: self._actor.value(self._model, part, self.critic), batch)
        # A completion that a limit cut has ended: its reward counts, and no state follows.
        final = value.new_zeros(len(batch)) if batch.final_obs is None else read_rows(self._final_value, batch)[:, 0]
        std = self.critic.return_std
        order = (batch.weight == 0).long().argsort(dim=1, stable=True)  # (B, S): the policy's own steps first
        steps = (x.gather(1, order) for x in (batch.reward, value * std, batch.weight))
        found = gae_advantage(*steps, self._discount_factor, self._gae_lambda, final * std)
        adv, return_ = (torch.zeros_like(x).scatter(1, order, x) for x in found)
        if self._cfg.critic.value_norm and batch.weight.any():
            self.critic.observe(return_[batch.weight != 0])
        return replace(batch, value=value, adv=adv, return_=return_ / std, final_obs=None)

    def _final_value(self, part: Batch) -> Tensor:
        return self._actor.final_value(self._model, part, self.critic).unsqueeze(1)  # (b, 1)

    def of_batch(self, learned: Batch) -> Dict[str, float]:
        return dict(explained_variance=explained_variance(learned.value, learned.return_, learned.weight))

    def add(self, loss: Tensor, part: Batch, found: Any, tokens: Optional[float], share: float) -> Tensor:
        of_values = self._loss(part, found.value, tokens)[0] * share
        return self._weight * of_values + (0 if self._alone else loss)

    def trained(self, parameters: List[nn.Parameter]) -> List[nn.Parameter]:
        """The parameters that a step trains: in the warm-up, those that only the values depend on."""
        if not self._alone:
            return parameters
        head = head_of(self._model, self.critic)
        for p in set(parameters) - set(head):
            p.grad = None  # the optimizer skips it
        return head

    def metrics(self, total_loss: float, batch: Batch, read: Dict[str, Tensor]) -> Dict[str, float]:
        loss, info = self._loss(batch, read['value'])
        total_loss += self._weight * loss.item()
        return dict(total_loss=total_loss, value_loss=loss.item(), value_clipfrac=info.value_clipfrac)

    def state_dict(self) -> Dict[str, Any]:
        return dict(critic=self.critic.state_dict())

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.critic.load_state_dict(state['critic'])

    def _loss(self, batch: Batch, value: Tensor, tokens: Optional[float] = None) -> Tuple:
        return value_error(
            ppo_value_data(value, batch.value, batch.return_, batch.weight),
            value_clip=self._cfg.critic.value_clip,
            reduction=self._reduction,
            max_length=self._actor.max_length,
            num_tokens=tokens
        )
