"""Check the arguments of the functions in this package."""
from typing import Any, Optional, Sequence, Tuple

import torch
from torch import Tensor


def check_tensor(
        name: str,
        x: Optional[Tensor],
        shape: Tuple[int, ...],
        symbols: str,
        kind: str = 'floats',
        optional: bool = False
) -> None:
    """Check shape and type of a tensor, and name the field in the error. ``symbols`` is the shape in letters, as in the
    docstrings; ``kind`` is ``floats``, ``int64``, or ``numbers`` for any real type, including bool."""
    if x is None and optional:
        return
    if not isinstance(x, Tensor):
        raise ValueError(f'{name} of {type(x).__name__}: must be a tensor of shape {symbols} = {tuple(shape)}')
    right = dict(floats=x.is_floating_point(), int64=x.dtype == torch.int64, numbers=not x.is_complex())[kind]
    if tuple(x.shape) != tuple(shape) or not right:
        raise ValueError(f'{name} {tuple(x.shape)} of {x.dtype}: must be {kind} of shape {symbols} = {tuple(shape)}')


def check_floats(name: str, x: Any) -> None:
    """Require a tensor of floats, of any shape."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise ValueError(f'{name} of {getattr(x, "dtype", type(x).__name__)}: must be a tensor of floats')


def as_floats(x: Any) -> Any:
    """A tensor of integers as float64; any other value unchanged."""
    return x.double() if isinstance(x, Tensor) and not (x.is_floating_point() or x.is_complex()) else x


def check_leading(name: str, x: Tensor, symbols: str) -> None:
    """Require a tensor of floats with as many dimensions as ``symbols`` has letters, with `` or `` between
    alternatives. For the field whose shape determines the shapes of the others."""
    if not isinstance(x, Tensor):
        raise ValueError(f'{name} of {type(x).__name__}: must be a tensor of floats of shape {symbols}')
    dims = [sum(letter.isalpha() for letter in shape) for shape in symbols.split(' or ')]
    if x.dim() not in dims or not x.is_floating_point():
        raise ValueError(f'{name} {tuple(x.shape)} of {x.dtype}: must be floats of shape {symbols}')


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f'{name} = {value!r}: must be one of {choices}')


def check_ranges(*ranges: Tuple[str, Tensor, int, int, str]) -> None:
    """For each (name, x, low, end, must): require numbers from ``low`` to ``end - 1``."""
    ranges = [one for one in ranges if one[1].numel() > 0]
    limits = [limit for _, x, *_ in ranges for limit in x.aminmax()]
    found = torch.stack(limits).tolist() if limits else []  # waits for a GPU once
    for (name, _, low, end, must), least, most in zip(ranges, found[::2], found[1::2]):
        if not low <= least <= most < end:
            raise ValueError(f'{name} from {least} to {most}: must be {must}')


def wide_type(x: Tensor) -> torch.dtype:
    """The type of sums: float32, or the type of x if that is wider."""
    return torch.promote_types(x.dtype, torch.float32)


def widened(x: Tensor) -> Tensor:
    """x in ``wide_type``."""
    return x.to(wide_type(x))


def check_number(name: str, value: float, low: float = 0, open_low: bool = False, high: Optional[float] = None) -> None:
    """Require a finite number of at least ``low``, or above it with ``open_low``, and of at most ``high``."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float('inf')
    if not number or not (value > low if open_low else value >= low):
        raise ValueError(f'{name} = {value!r}: must be a finite number {"above" if open_low else "of at least"} {low}')
    if high is not None and value > high:
        raise ValueError(f'{name} = {value!r}: must be at most {high:g}')
