"""Runs a model in float64 during a trial, without a copy of its weights."""
from contextlib import ExitStack, contextmanager
from typing import Any, Iterator, Optional

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_NARROW = (torch.float32, torch.bfloat16, torch.float16)
_aten = torch.ops.aten
# Operations that only move numbers. Their result is converted to float64 instead of a whole weight matrix.
_MOVES = {_aten.embedding, _aten.index, _aten.index_select, _aten.gather}


@contextmanager
def in_float64() -> Iterator[None]:
    """Context in which every operation computes in float64, including conversions to narrower types. The weights keep
    their type; each is converted to float64 for the operation that uses it. Gradients are disabled."""
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)
        for context in (torch.no_grad(), _Widen(), _WidenConvolutions()):
            stack.enter_context(context)
        yield


class _Widen(TorchDispatchMode):

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Optional[dict] = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get('dtype') in _NARROW:
            kwargs['dtype'] = torch.float64
        if func.overloadpacket in _MOVES:
            return _widened(func(*args, **kwargs))
        if func.is_view:
            return func(*args, **kwargs)
        changed = 1 if func._schema.is_mutable else 0  # the tensor that is written to keeps its type
        args = (*args[:changed], *_widened(args[changed:]))
        if func.overloadpacket is _aten._grouped_mm:  # does not support float64
            return _grouped_product(*args[:3])
        return func(*args, **_widened(kwargs))


class _WidenConvolutions(TorchFunctionMode):
    """Convolutions compare the types of their arguments before ``_Widen`` sees them."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: Optional[dict] = None) -> Any:
        if func in (torch.conv1d, torch.conv2d):
            args, kwargs = _widened(args), _widened(kwargs or {})
        return func(*args, **(kwargs or {}))


def _grouped_product(x: Tensor, weight: Tensor, end: Tensor) -> Tensor:
    """Multiply the rows of x up to each end by the weight of that group: (N, H), (E, H, V), (E, ) -> (N, V)."""
    out, begin = x.new_zeros(len(x), weight.shape[-1]), 0
    for matrix, stop in zip(weight, end.tolist()):
        out[begin:stop] = x[begin:stop] @ matrix
        begin = stop
    return out


def _widened(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.double() if x.dtype in _NARROW else x
    if isinstance(x, (tuple, list)):
        return type(x)(map(_widened, x))
    return {key: _widened(value) for key, value in x.items()} if isinstance(x, dict) else x
