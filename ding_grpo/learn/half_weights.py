"""Weights in bfloat16 and float16 under AdamW: which of them a step can change, and which it would destroy."""
from typing import Dict, Optional

import torch
from torch import Tensor

from ding_common import ConfigError

CHUNK = 2 ** 22  # number of weights that are examined at a time


def check_trained(trained: Dict[str, Tensor]) -> None:
    """Raise ``ConfigError`` if a trained weight is in float16. In float16, the squares of gradients that AdamW averages
    underflow to 0, so its step is the gradient divided by ``eps``. Float16 is harmless without training, and for
    weights that adapters leave frozen."""
    for name, weight in trained.items():
        if weight.dtype is torch.float16:
            raise ConfigError(
                f"policy.model.dtype = 'float16': would train {name} in float16, in which AdamW's second moments "
                "underflow and its steps destroy the weights. Use 'float32' or 'bfloat16', or train adapters only "
                '(policy.model.lora).'
            )


@torch.no_grad()
def movable_share(weights: Dict[str, Tensor], learning_rate: float) -> float:
    """The share in [0, 1] of weights that a step of AdamW can change. A step adds or subtracts about the learning rate;
    weight decay adds far less. If this is less than half the distance to the next number of the weight's type, the sum
    is rounded to the weight itself."""
    movable, number = 0, 0
    for weight in weights.values():
        for part in weight.detach().flatten().split(CHUNK):
            wide = part.to(torch.promote_types(part.dtype, torch.float32))  # the type in which AdamW computes
            moved = [(wide + step).to(part.dtype) != part for step in (learning_rate, -learning_rate)]
            movable += (moved[0] | moved[1]).sum().item()
            number += part.numel()
    return movable / max(number, 1)


def bfloat16_notice(trained: Dict[str, Tensor], learning_rate: float) -> Optional[str]:
    """A message for the start of a run, if weights are in bfloat16: small steps do not change most of them."""
    if not any(weight.dtype is torch.bfloat16 for weight in trained.values()):
        return None
    share = movable_share(trained, learning_rate)
    notice = f"policy.model.dtype = 'bfloat16': a step of policy.learn.learning_rate = {learning_rate:g} can move " \
        f'{share:.1%} of the trained weights.'
    return notice if share == 1 else (
        f"{notice} The others are too large for this step and do not change. policy.model.dtype = 'float32' with "
        "policy.model.autocast = 'auto' computes in bfloat16 and keeps weights that every step can move."
    )
