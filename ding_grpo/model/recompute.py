"""``policy.model.gradient_checkpointing``: learning keeps the activations of one layer at a time."""
from contextlib import contextmanager
from typing import Iterator, List

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from ding_common import ConfigError


def recomputed_layers(lm: PreTrainedModel) -> List[nn.Module]:
    """Prepare the layers of a model whose activations are computed again for the gradient, see ``recomputing``."""
    lm.activation_checkpointing_enable(activation_checkpointing_kwargs=dict(use_reentrant=False))
    layers = [m for m in lm.modules() if isinstance(m, GradientCheckpointingLayer)]
    for layer in layers:  # ``eval`` disables the dropout of modules; some layers have a rate of their own
        for name, value in vars(layer).items():
            if 'dropout' in name and isinstance(value, float):
                setattr(layer, name, 0.0)
    if not layers:
        raise ConfigError(
            f'policy.model.gradient_checkpointing = True: {type(lm).__name__} has no layers that support it.'
        )
    return layers


@contextmanager
def recomputing(layers: List[nn.Module]) -> Iterator[None]:
    """Context in which these layers do not keep their activations, if gradients are enabled."""
    layers = layers if torch.is_grad_enabled() else []
    for layer in layers:
        layer.training = True  # of the layer only: the modules in it keep dropout disabled
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False
