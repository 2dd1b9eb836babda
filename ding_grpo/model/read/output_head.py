"""The output layer of a model, as a formula."""
from typing import NamedTuple, Optional

import torch
from torch import Tensor

from ding_grpo.rl_utils.log_probs.matrix_product import linear


class OutputHead(NamedTuple):
    """How logits are computed from hidden states: ``softcap * tanh(scale * (hidden weight^T + bias) / softcap)``, or
    without the tanh if ``softcap`` is None. With ``rounded``, both factors are rounded to bfloat16. The fields are
    arguments of ``ding_grpo.rl_utils.linear_log_prob``."""
    weight: Tensor  # (V, H)
    bias: Optional[Tensor]  # (V, )
    scale: float
    softcap: Optional[float]
    rounded: bool = False

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits (*, V) of hidden states (*, H) as the model computes them, in the type of the weights."""
        with torch.autocast(hidden.device.type, enabled=False):
            product = linear(hidden.to(self.weight.dtype), self.weight, self.bias, self.rounded)
            return softcapped(product, self.scale, self.softcap)


def softcapped(product: Tensor, scale: float, softcap: Optional[float]) -> Tensor:
    """The logits of a product of hidden states and output matrix."""
    product = product if scale == 1 else product * scale
    return product if softcap is None else softcap * torch.tanh(product / softcap)
