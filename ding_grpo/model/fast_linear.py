from typing import Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from ding_grpo.rl_utils.log_probs.matrix_product import linear


class _Fast:
    """A layer that multiplies by its weight. Under autocast, a frozen weight is converted once instead of at every
    call. Torch caches conversions of trained weights only, until the autocast context ends."""
    onednn = True  # without autocast

    def _cast(self, name: str, x: Tensor) -> Optional[Tensor]:
        """The weight or the bias in autocast's type for ``x``."""
        value: Optional[Tensor] = getattr(self, name)
        dtype = torch.get_autocast_dtype(x.device.type)
        if value is None or value.requires_grad or value.dtype is dtype:
            return value
        key = (dtype, value.device, value.data_ptr(), value._version)
        known = self.__dict__.setdefault('_casts', {})
        if name not in known or known[name][0] != key:
            known[name] = key, value.detach().to(dtype)
        return known[name][1]


class FastLinear(_Fast, nn.Linear):
    """``torch.nn.Linear`` by ``ding_grpo.rl_utils.log_probs.matrix_product``."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_autocast_enabled(x.device.type):
            return F.linear(x, self._cast('weight', x), self._cast('bias', x))
        return (linear if self.onednn else F.linear)(x, self.weight, self.bias)


class FastConv1D(_Fast, Conv1D):
    """The linear layer of GPT-2, whose weight is transposed, by ``ding_grpo.rl_utils.log_probs.matrix_product``."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_autocast_enabled(x.device.type):  # torch does not cache the conversion of a transposed weight
            rows = torch.addmm(self._cast('bias', x), x.view(-1, x.shape[-1]), self._cast('weight', x))
            return rows.view(*x.shape[:-1], self.nf)
        return (linear if self.onednn else F.linear)(x, self.weight.t(), self.bias)


def make_fast(module: nn.Module, onednn: bool = True) -> None:
    """Make the linear layers inside a module faster, in place. Parameters and their names do not change. ``onednn``:
    whether oneDNN computes them in float32, where it is faster."""
    fast = {nn.Linear: FastLinear, Conv1D: FastConv1D}
    for layer in module.modules():
        if type(layer) in fast:
            layer.__class__ = fast[type(layer)]
            layer.onednn = onednn


def forget_casts(module: nn.Module) -> None:
    """Drop the converted weights of the linear layers inside a module. New weights may have the address of old ones."""
    for layer in module.modules():
        if isinstance(layer, _Fast):
            layer.__dict__.pop('_casts', None)
