"""
Matrix products in float32 on a CPU with oneDNN. The library that torch uses by default reaches only half of the speed
of recent AMD processors (docs/speed.md has figures). In all other cases, and for small products, torch's own function.
"""
import platform
from functools import lru_cache
from typing import Any, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

FROM = 2 ** 21  # minimum number of multiplications; in smaller products the set-up costs more than it saves
_AVAILABLE = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, '_linear_pointwise')


def matrix_product(a: Tensor, b: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """
    Overview:
        a b^T, plus the bias. Use ``linear`` for a differentiable product.
    Shapes:
        - a (:obj:`torch.FloatTensor`): :math:`(N, H)`
        - b (:obj:`torch.FloatTensor`): :math:`(V, H)`
        - bias (:obj:`Optional[torch.FloatTensor]`): :math:`(V, )`
        - out (:obj:`torch.FloatTensor`): :math:`(N, V)`
    """
    if pays(a, b):
        return torch.ops.mkldnn._linear_pointwise(a, b, bias, 'none', [], '')
    return torch.nn.functional.linear(a, b, bias)


def pays(a: Tensor, b: Tensor) -> bool:
    """Whether ``matrix_product`` uses oneDNN for tensors of these shapes, types and devices."""
    return (
        a.numel() * b.shape[0] >= FROM and a.dtype is torch.float32 and b.dtype is torch.float32 and _AVAILABLE
        and not a.is_cuda and a.device.type == 'cpu'
    )


@lru_cache(maxsize=None)
def multiplies_bfloat16(device_type: str) -> bool:
    """
    Overview:
        Whether a device has instructions for products of bfloat16: NVIDIA's GPUs since Ampere, x86 processors with \
        AVX512_BF16 or AMX, and ARM processors for which oneDNN says so. Others emulate them; a CPU with AVX2 alone \
        then takes up to a hundred times as long as in float32.
    Arguments:
        - device_type (:obj:`str`): ``cpu`` or ``cuda``.
    """
    if device_type == 'cuda':
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if platform.machine() in ('x86_64', 'AMD64'):  # where oneDNN also says yes to AVX-512 without these instructions
        kinds = (getattr(torch.cpu, f'_is_{name}_supported', None) for name in ('avx512_bf16', 'amx_tile'))
        return _AVAILABLE and any(has is not None and has() for has in kinds)
    return _AVAILABLE and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """
    Overview:
        ``torch.nn.functional.linear`` through ``matrix_product``, differentiable.
    Shapes:
        - x (:obj:`torch.FloatTensor`): :math:`(*, H)`
        - weight (:obj:`torch.FloatTensor`): :math:`(V, H)`
        - bias (:obj:`Optional[torch.FloatTensor]`): :math:`(V, )`
        - out (:obj:`torch.FloatTensor`): :math:`(*, V)`
    """
    if not pays(x, weight) or torch.is_autocast_enabled(x.device.type):
        return torch.nn.functional.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    out = _Linear.apply(rows, weight, bias) if torch.is_grad_enabled() else matrix_product(rows, weight, bias)
    return out.view(*x.shape[:-1], len(weight))


class _Linear(torch.autograd.Function):

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        ctx.save_for_backward(x, weight)
        return matrix_product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        return (
            matrix_product(grad, weight.t()) if ctx.needs_input_grad[0] else None,
            matrix_product(grad.t(), x.t()) if ctx.needs_input_grad[1] else None,
            grad.sum(0) if ctx.needs_input_grad[2] else None,
        )
