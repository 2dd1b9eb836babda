"""Weights of step models before training."""
import torch
from torch import nn

from ding_common import ConfigError

LOG_SIGMA = -0.5  # of continuous actions
LAST_GAIN = 0.01


@torch.no_grad()
def init_as_ppo(model: nn.Module) -> None:
    """Initialize a model of DI-engine as its PPO does with ``ppo_param_init``: orthogonal weights; for continuous
    actions small ones in the whole actor, so that first actions are near 0, and log standard deviations of -0.5
    (https://arxiv.org/abs/2006.05990). The model then needs ``actor``, ``critic`` and ``actor_head``, as ``vac`` has.
    """
    continuous = getattr(model, 'action_space', 'discrete') in ('continuous', 'hybrid')
    if continuous and not all(hasattr(model, name) for name in ('actor', 'critic', 'actor_head')):
        raise ConfigError(
            f'policy.learn.ppo_param_init = True: {type(model).__name__} has no actor, critic and actor_head. Set it '
            "to False, or use model type 'vac'."
        )
    _orthogonal(model, 1.0)
    if not continuous:
        return
    for part in (model.critic, model.actor):
        _orthogonal(part, 2 ** 0.5)
    for name, parameter in model.named_parameters():
        if name.endswith('log_sigma_param'):
            parameter.fill_(LOG_SIGMA)
    for layer in model.actor.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.mul_(LAST_GAIN)


def _orthogonal(model: nn.Module, gain: float) -> None:
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
