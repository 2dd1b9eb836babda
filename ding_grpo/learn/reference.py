"""The policy that a KL term is relative to (``policy.learn.kl.beta``)."""
from typing import Callable, Dict, Optional

import torch
from torch import Tensor, nn

from ding_common import ConfigError
from ding_grpo.act.actor import Actor
from ding_grpo.data.batch import Batch
from ding_grpo.model.sharding import own

from .update import Updater


class Reference:
    """The policy at the start: a copy of the model, or, if adapters are trained, the model without them."""

    def __init__(self, actor: Actor, model: nn.Module, duplicate: Callable[[nn.Module], nn.Module]) -> None:
        self._actor, self._policy = actor, model
        self.copy = None if actor.has_adapters else duplicate(model).requires_grad_(False)

    @property
    def frozen(self) -> nn.Module:
        """The model whose weights without a gradient are the reference."""
        return self._policy if self.copy is None else self.copy

    def read(self, updater: Updater, batch: Batch) -> Tensor:
        with self._actor.without_adapters(self._policy):
            return updater.read(batch, self.copy)

    @torch.no_grad()
    def renew(self, mixup: float) -> None:
        """Move the copy towards the policy; ``mixup`` is the policy's share."""
        for part in (nn.Module.parameters, nn.Module.buffers):  # buffers: such as the statistics of batch norm
            for ref, new in zip(part(self.copy), part(self._policy)):
                own(ref).lerp_(own(new), mixup) if ref.is_floating_point() else ref.copy_(new)


def make_reference(cfg: Dict, actor: Actor, model: nn.Module, duplicate: Callable[[nn.Module],
                                                                                  nn.Module]) -> Optional[Reference]:
    """The reference for ``cfg``, the section ``policy.learn``; None without a KL. ``duplicate`` copies the model."""
    if actor.has_adapters and cfg.kl.ref_sync_freq is not None:
        raise ConfigError(
            f'policy.learn.kl.ref_sync_freq = {cfg.kl.ref_sync_freq}: with policy.model.lora the reference is the '
            'pretrained model, which cannot be renewed. Set it to None.'
        )
    return Reference(actor, model, duplicate) if cfg.kl.beta > 0 else None
