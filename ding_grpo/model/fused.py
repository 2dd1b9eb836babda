"""
Norms, gated units and rotary embeddings of an architecture with fewer operations. On a GPU a norm is one launch. All
others have the bits of the architecture's own operations; backward they write to memory less often, and they keep less
of it. A rotary embedding is fused on a GPU without a gradient, as in sampling.
"""
from functools import lru_cache, partial
from inspect import Parameter, signature, unwrap
from itertools import chain
from typing import Any, Callable, Optional, Tuple, Type

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call
from torch.nn import functional as F

ROTATE = 'apply_rotary_pos_emb'  # the function that attentions of transformers call


def fuse(module: nn.Module) -> None:
    """Let the layers inside a module that compute the same as one of these compute it this way. Parameters and their
    names do not change."""
    for layer in module.modules() if not any(p.is_meta for p in module.parameters()) else ():  # which has no numbers
        for kind in (_Norm, _GatedUnit) if _takes_one(layer) else (_Attention, ):
            if kind.is_like(layer):
                layer.__class__ = _fused(kind, type(layer))


@lru_cache(maxsize=None)
def _fused(kind: Type[nn.Module], own: Type[nn.Module]) -> Type[nn.Module]:
    return type(own.__name__, (kind, own), dict(__module__=own.__module__))


def _takes_one(layer: nn.Module) -> bool:
    """Whether a layer is called with one argument."""
    named = [x for x in signature(layer.forward).parameters.values() if x.kind is not Parameter.VAR_KEYWORD]
    return len(named) == 1


class _Norm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * (weight + offset) in float32; other types are left to the architecture's class."""
    norm_eps: float
    norm_offset: int

    @staticmethod
    def is_like(layer: nn.Module) -> bool:
        """Whether a layer has the same result on a few numbers, some so small that ``eps`` counts, with a weight of no
        equal numbers. If so, its attributes say which norm it is."""
        weight, eps = getattr(layer, 'weight', None), getattr(layer, 'variance_epsilon', getattr(layer, 'eps', None))
        named = type(layer).__name__.endswith('RMSNorm') and weight is not None and eps is not None
        if not named or weight.dtype is not torch.float32:
            return False
        x = torch.linspace(-2, 3, 2 * len(weight), device=weight.device).view(2, -1)
        x[1] *= 1e-3
        other = torch.linspace(-0.5, 2, len(weight), device=weight.device)
        with torch.no_grad():
            own = functional_call(layer, dict(weight=other), (x, ))
            fitting = [i for i in (0, 1) if torch.equal(_NormOnCPU.apply(x, other + i, eps), own)]
        if fitting:
            layer.norm_eps, layer.norm_offset = eps, fitting[0]
        return bool(fitting)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype is not torch.float32 or self.weight.dtype is not torch.float32:
            return super().forward(x)
        weight = self.weight + self.norm_offset if self.norm_offset else self.weight
        if x.is_cuda:
            return F.rms_norm(x, weight.shape, weight, self.norm_eps)
        if not torch.is_grad_enabled():
            return _unit(x, self.norm_eps)[0].mul_(weight)
        return _NormOnCPU.apply(x, weight, self.norm_eps)


def _unit(x: Tensor, eps: float) -> Tuple[Tensor, Tensor]:
    """x divided by its root mean square, and what it was multiplied by."""
    unit = x * x
    scale = unit.mean(-1, keepdim=True).add_(eps).rsqrt_()
    return torch.mul(x, scale, out=unit), scale


class _NormOnCPU(torch.autograd.Function):

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        unit, scale = _unit(x, eps)
        ctx.save_for_backward(unit, scale, weight)
        return unit * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        unit, scale, weight = ctx.saved_tensors
        product = grad * unit
        of_weight = product.reshape(-1, len(weight)).sum(0) if ctx.needs_input_grad[1] else None
        along = product.mul_(weight).mean(-1, keepdim=True)
        return torch.mul(grad, weight, out=product).addcmul_(unit, along, value=-1).mul_(scale), of_weight, None


class _GatedUnit(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    @staticmethod
    def is_like(layer: nn.Module) -> bool:
        """Whether a layer has the same result on a few numbers."""
        gate = getattr(layer, 'gate_proj', None)
        if not all(hasattr(layer, name) for name in ('gate_proj', 'up_proj', 'down_proj', 'act_fn')):
            return False
        one = next(chain(layer.parameters(), layer.buffers()))  # of few bits if there are buffers alone
        dtype = one.dtype if one.is_floating_point() else None
        x = torch.linspace(-2, 3, gate.in_features, dtype=dtype, device=one.device).unsqueeze(0)
        try:
            with torch.no_grad():
                return torch.equal(layer(x), _GatedUnit.forward(layer, x))
        except RuntimeError:  # its parts have different types
            return False

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(_Gate.apply(gate, value) if torch.is_grad_enabled() else F.silu(gate).mul_(value))


class _Gate(torch.autograd.Function):
    """silu(gate) * value, which keeps its arguments alone."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(gate, value)
        return F.silu(gate).mul_(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, Tensor]:
        gate, value = ctx.saved_tensors
        of_gate = grad * value
        torch.ops.aten.silu_backward.grad_input(of_gate, gate, grad_input=of_gate)
        return of_gate, F.silu(gate).mul_(grad)


class _Attention(nn.Module):
    """An attention with another function for the rotary embedding, while it runs."""
    own_rotation: Callable

    @staticmethod
    def is_like(layer: nn.Module) -> bool:
        """Whether ``_turned`` has the result of the architecture's function on a few numbers of each type."""
        forward = unwrap(type(layer).forward)
        own = forward.__globals__.get(ROTATE) if ROTATE in forward.__code__.co_names else None
        named = [] if own is None else [(x.name, x.default is x.empty) for x in signature(own).parameters.values()]
        if named != [('q', True), ('k', True), ('cos', True), ('sin', True), ('unsqueeze_dim', False)]:
            return False
        x = torch.linspace(-2, 3, 96).view(1, 6, 2, 8)
        for kind, of_angles in ((torch.float32, ) * 2, (torch.bfloat16, ) * 2, (torch.bfloat16, torch.float32)):
            given = x[:, :3].to(kind), x[:, 3:4].to(kind), *x[0, 4:, None].to(of_angles)
            try:
                wanted = own(*given)
            except RuntimeError:  # it wants angles of another shape
                return False
            if not all(x.dtype is y.dtype and torch.equal(x, y) for x, y in zip(wanted, _turned(*given))):
                return False
        layer.own_rotation = own
        return True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            return super().forward(*args, **kwargs)
        names = unwrap(super().forward).__globals__
        names[ROTATE] = partial(_rotated, self.own_rotation)
        try:
            return super().forward(*args, **kwargs)
        finally:
            names[ROTATE] = self.own_rotation


def _rotated(own: Callable,
             q: Tensor,
             k: Tensor,
             cos: Tensor,
             sin: Tensor,
             unsqueeze_dim: int = 1) -> Tuple[Tensor, Tensor]:
    if not q.is_cuda or unsqueeze_dim != 1 or q.shape[-1] != cos.shape[-1]:  # or it turns a part of each head
        return own(q, k, cos, sin, unsqueeze_dim)
    return _turned(q, k, cos, sin)


def _turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Tuple[Tensor, Tensor]:
    """Rotary embedding of q (B, H, N, D) and k (B, K, N, D) by angles (B, N, D), in three launches; another for all
    layers."""
    turn = getattr(cos, 'turn', None)
    if turn is None:
        (c, d), (s, t) = cos.chunk(2, -1), sin.chunk(2, -1)
        turn = torch.stack([c, -s, t, d], -2).unflatten(-2, (2, 2)).unsqueeze(2)  # (B, N, 1, 2, 2, D / 2)
        cos.turn = turn
    x = torch.cat([q.transpose(1, 2), k.transpose(1, 2)], 2).unflatten(-1, (1, 2, -1))  # (B, N, H + K, 1, 2, D / 2)
    turned = (x * turn).sum(-2).flatten(-2).transpose(1, 2)  # (B, H + K, N, D)
    return turned.split([q.shape[1], k.shape[1]], 1)
