"""
Matrix products in float32 on a CPU with oneDNN. The library that torch uses by default reaches only half of the speed
of AMD processors with AVX-512; with AVX2 alone it is the faster one (figures: docs/design/design.md). Torch's own
function is used there, in all other cases, and for small products. And products of bfloat16 whose sums stay in float32.
"""
import platform
from functools import lru_cache
from typing import Any, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ding_grpo.rl_utils.check import wide_type

FROM = 2 ** 21  # minimum number of multiplications; in smaller products the set-up costs more than it saves
SUMS_IN_FLOAT32 = 'dtype' in torch.ops.aten.mm.overloads()  # of products of bfloat16; since torch 2.8
_AVAILABLE = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, '_linear_pointwise')
_FASTER = _AVAILABLE and torch.backends.cpu.get_cpu_capability() != 'AVX2'


def matrix_product(a: Tensor, b: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """a b^T, plus the bias: (N, H), (V, H), (V, ) -> (N, V). Use ``linear`` for a differentiable product."""
    return (onednn_product if pays(a, b) else torch.nn.functional.linear)(a, b, bias)


def onednn_product(a: Tensor, b: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """``matrix_product`` by oneDNN, whether it pays or not."""
    return torch.ops.mkldnn._linear_pointwise(a, b, bias, 'none', [], '')


def pays(a: Tensor, b: Tensor) -> bool:
    """Whether ``matrix_product`` uses oneDNN for tensors of these shapes, types and devices."""
    return (
        a.numel() * b.shape[0] >= FROM and a.dtype is torch.float32 and b.dtype is torch.float32 and _FASTER
        and not a.is_cuda and a.device.type == 'cpu'
    )


def rounded_product(a: Tensor, b: Tensor) -> Tensor:
    """a b^T of factors that are rounded to bfloat16, with sums in float32 or wider. A GPU multiplies bfloat16; a CPU
    has no such product, so that this one takes as long as in float32. Use ``linear`` for a differentiable product."""
    rounded = a.to(torch.bfloat16), b.to(torch.bfloat16)
    wide = wide_type(a)
    if a.device.type == 'cuda' and wide is torch.float32:
        return torch.mm(rounded[0], rounded[1].t(), out_dtype=wide)
    return matrix_product(*(x.to(wide) for x in rounded))


@lru_cache(maxsize=None)
def multiplies_bfloat16(device_type: str) -> bool:
    """Whether a device has instructions for products of bfloat16: NVIDIA's GPUs since Ampere, x86 processors with
    AVX512_BF16 or AMX, and ARM processors for which oneDNN says so. Others emulate them; a CPU with AVX2 alone then
    takes up to a hundred times as long as in float32."""
    if device_type == 'cuda':
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if platform.machine() in ('x86_64', 'AMD64'):  # where oneDNN also says yes to AVX-512 without these instructions
        kinds = (getattr(torch.cpu, f'_is_{name}_supported', None) for name in ('avx512_bf16', 'amx_tile'))
        return _AVAILABLE and any(has is not None and has() for has in kinds)
    return _AVAILABLE and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None, rounded: bool = False) -> Tensor:
    """``torch.nn.functional.linear`` through ``matrix_product``, or with ``rounded`` through ``rounded_product``,
    differentiable: (*, H), (V, H), (V, ) -> (*, V)."""
    if not rounded and (not pays(x, weight) or torch.is_autocast_enabled(x.device.type)):
        return torch.nn.functional.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    if torch.is_grad_enabled():
        out = _Linear.apply(rows, weight, bias, rounded)
    else:
        out = _product(rows, weight, bias, rounded)
    return out.view(*x.shape[:-1], len(weight))


def _product(a: Tensor, b: Tensor, bias: Optional[Tensor], rounded: bool) -> Tensor:
    if not rounded:
        return matrix_product(a, b, bias)
    out = rounded_product(a, b)
    return out if bias is None else out.add_(bias)


class _Linear(torch.autograd.Function):

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Optional[Tensor], rounded: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.rounded = rounded
        return _product(x, weight, bias, rounded)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        x, weight = ctx.saved_tensors
        grad, product = grad.contiguous(), rounded_product if ctx.rounded else matrix_product
        return (
            product(grad, weight.t()).to(x.dtype) if ctx.needs_input_grad[0] else None,
            product(grad.t(), x.t()).to(weight.dtype) if ctx.needs_input_grad[1] else None,
            grad.sum(0) if ctx.needs_input_grad[2] else None,
            None,
        )
