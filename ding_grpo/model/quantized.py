"""
Frozen weights of linear layers in 4 or 8 bits beside adapters (QLoRA, https://arxiv.org/abs/2305.14314), by
``bitsandbytes``. A layer widens its weight at each call, in sampling and in learning alike, so that both compute with
the same numbers.
"""
from typing import Any, ContextManager, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import _disable_current_modes
from transformers import PreTrainedModel

from ding_common import ConfigError
from ding_common.hub.weight_by_weight import weight_by_weight
from ding_grpo.rl_utils.log_probs.matrix_product import linear

from .lora import trained_modules
from .trunk import trunk_of

# Number of weights that share a scale in float32. '4bit' is NF4, '8bit' the dynamic type of bitsandbytes.
BLOCKS = {'4bit': 64, '8bit': 256}
PART = 2 ** 20  # weights that are made small at a time: bitsandbytes needs several times their memory


class Packed(NamedTuple):
    """A weight (N, M) in few bits."""
    packed: Tensor  # (N * M / 2, 1) or (N, M)
    scale: Tensor  # of each block
    code: Tensor  # what each pattern of bits means

    @classmethod
    def of(cls, weight: Tensor, kind: str) -> 'Packed':
        from bitsandbytes import functional
        parts = []
        for part in weight.detach().reshape(-1).split(PART):
            if kind == '4bit':
                packed, state = functional.quantize_4bit(part.float(), blocksize=BLOCKS[kind], quant_type='nf4')
            else:
                packed, state = functional.quantize_blockwise(part.float(), blocksize=BLOCKS[kind])
            parts.append((packed, state.absmax))
        packed, scale = map(torch.cat, zip(*parts))
        return cls(packed if kind == '4bit' else packed.view(weight.shape), scale, state.code)


class PackedWeight(nn.Parameter):
    """A weight that was packed as it was read: its shape and type, without its numbers."""
    packed: Packed

    @classmethod
    def of(cls, weight: nn.Parameter, kind: str) -> 'PackedWeight':
        self = cls(torch.zeros((), dtype=weight.dtype, device=weight.device).expand(weight.shape))
        self.packed = Packed.of(weight, kind)
        return self


class QuantizedLinear(nn.Module):
    """A linear layer whose weight has 4 or 8 bits."""

    def __init__(self, layer: nn.Linear, kind: str) -> None:
        super().__init__()
        self.in_features, self.out_features, self.kind = layer.in_features, layer.out_features, kind
        weight = layer.weight
        packed = weight.packed if isinstance(weight, PackedWeight) else Packed.of(weight, kind)
        for name, tensor in packed._asdict().items():
            self.register_buffer(name, tensor)
        self.bias = layer.bias

    def wide(self) -> Tensor:
        """The weight in float32, also while a trial computes in float64 (``trial/float64.py``)."""
        from bitsandbytes import functional
        with _disable_current_modes():
            state = functional.QuantState(
                self.scale, (self.out_features, self.in_features), self.code, BLOCKS[self.kind], 'nf4', torch.float32
            )
            widen = functional.dequantize_4bit if self.kind == '4bit' else functional.dequantize_blockwise
            return widen(self.packed, state)

    def forward(self, x: Tensor) -> Tensor:
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        found = _Product.apply(x.to(dtype), self)
        return found if self.bias is None else found + self.bias.to(dtype)


class _Product(torch.autograd.Function):
    """x W^T with the wide weight, which is not kept until the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return linear(x, layer.wide().to(x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], None]:
        return grad @ ctx.layer.wide().to(grad.dtype), None


def check_quantize(kind: Optional[str], lora: Any, save_merged: bool) -> None:
    """Check the argument ``quantize`` of ``CausalLM``."""
    if kind is None:
        return
    if kind not in BLOCKS:
        raise ConfigError(f"policy.model.quantize = {kind!r}: must be one of {', '.join(map(repr, BLOCKS))}, or None.")
    if lora is None:
        raise ConfigError(
            f'policy.model.quantize = {kind!r}: needs policy.model.lora, as such weights are not trained.'
        )
    if save_merged:
        raise ConfigError(
            f'policy.model.quantize = {kind!r}: save_merged = True would save the rounded weights. Set it to False, '
            'and merge the saved adapters into their base model.'
        )
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"policy.model.quantize = {kind!r}: needs the extra: pip install '.[quantize]' in the clone"
        ) from error


def check_adapters(config: Any, kind: str) -> None:
    """Check the configuration of peft's adapters beside weights of few bits."""
    for key in ('use_dora', 'target_parameters'):
        value = getattr(config, key, None)
        if value:
            raise ConfigError(
                f'policy.model.lora: {key} = {value!r} needs whole weights, which policy.model.quantize = {kind!r} '
                'does not keep. Leave out one of them.'
            )


def packing(kind: str, lora: Union[dict, str]) -> ContextManager:
    """Context in which a model is loaded so that ``quantize_linear`` finds ``PackedWeight`` in place of what it would
    make small, with the exception of weights that are tied, or trained beside these adapters."""
    ends = tuple(trained_modules(lora))

    def layers_of(lm: PreTrainedModel) -> List[nn.Module]:
        inside = set(trunk_of(lm).modules())
        tied = {*lm.all_tied_weights_keys, *lm.all_tied_weights_keys.values()}
        named = dict(lm.named_modules())
        trained = tuple(f'{name}.' for name in named if name.endswith(ends))
        return [
            layer for name, layer in named.items() if isinstance(layer, nn.Linear) and layer in inside
            and f'{name}.weight' not in tied and not f'{name}.'.startswith(trained)
        ]

    return weight_by_weight(layers_of, lambda weight: PackedWeight.of(weight, kind))


def quantize_linear(model: nn.Module, trunk: nn.Module, kind: str) -> None:
    """Replace the frozen linear layers inside the trunk of a model, in place."""
    found = [
        (parent, name, layer) for parent in trunk.modules() for name, layer in parent.named_children()
        if isinstance(layer, nn.Linear) and not layer.weight.requires_grad
    ]
    if not found:
        raise ConfigError(f'policy.model.quantize = {kind!r}: the model has no linear layer whose weight is frozen.')
    for parent, name, layer in found:
        setattr(parent, name, QuantizedLinear(layer, kind))
    for p in model.parameters():  # one that is mapped from a file keeps the whole file in memory
        p.data = p.data.clone()
