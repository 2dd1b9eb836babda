"""Weights of half types under AdamW: which of them a step can move, and which it would destroy."""
from typing import Dict, Optional

import torch
from torch import Tensor

from ding_common import ConfigError

CHUNK = 2 ** 22  # weights that are looked at at a time


def check_trained(trained: Dict[str, Tensor]) -> None:
    """
    Overview:
        Refuse to train weights in float16. The squares of gradients, which AdamW averages there, underflow to 0, and \
        so its step is the gradient over ``eps``. Without training, and for weights that adapters leave as they are, \
        float16 does no harm.
    Arguments:
        - trained (:obj:`Dict[str, torch.Tensor]`): The weights to be trained, by name.
    Raises:
        - ConfigError: If one is of float16.
    """
    for name, weight in trained.items():
        if weight.dtype is torch.float16:
            raise ConfigError(
                f"policy.model.dtype = 'float16': would train {name} in float16, where AdamW's second moments "
                "underflow and its steps destroy the weights. Use 'float32' or 'bfloat16', or train adapters alone "
                '(policy.model.lora).'
            )


@torch.no_grad()
def movable_share(weights: Dict[str, Tensor], learning_rate: float) -> float:
    """
    Overview:
        The share of weights that a step of AdamW can move: it adds or subtracts about the learning rate (its weight \
        decay far less), and where that is less than half the distance to the next number of the weight's type, the \
        sum is rounded to the weight itself.
    Arguments:
        - weights (:obj:`Dict[str, torch.Tensor]`): Weights of any float types, by name.
        - learning_rate (:obj:`float`): The largest of the run.
    Returns:
        - share (:obj:`float`): In [0, 1].
    """
    movable, number = 0, 0
    for weight in weights.values():
        for part in weight.detach().flatten().split(CHUNK):
            wide = part.to(torch.promote_types(part.dtype, torch.float32))  # as AdamW computes
            moved = [(wide + step).to(part.dtype) != part for step in (learning_rate, -learning_rate)]
            movable += (moved[0] | moved[1]).sum().item()
            number += part.numel()
    return movable / max(number, 1)


def bfloat16_notice(trained: Dict[str, Tensor], learning_rate: float) -> Optional[str]:
    """
    Overview:
        A message for the start of a run that trains weights of bfloat16, most of which small steps do not move.
    Arguments:
        - trained (:obj:`Dict[str, torch.Tensor]`): The weights to be trained, by name.
        - learning_rate (:obj:`float`): The largest of the run.
    Returns:
        - notice (:obj:`Optional[str]`): The message; None if no weight of bfloat16 is trained.
    """
    if not any(weight.dtype is torch.bfloat16 for weight in trained.values()):
        return None
    share = movable_share(trained, learning_rate)
    notice = f"policy.model.dtype = 'bfloat16': a step of policy.learn.learning_rate = {learning_rate:g} can move " \
        f'{share:.1%} of the trained weights.'
    return notice if share == 1 else (
        f"{notice} The others are too large for it and stay as they are. policy.model.dtype = 'float32' with "
        "policy.model.autocast = 'bfloat16' computes in bfloat16 and keeps weights that every step moves."
    )
