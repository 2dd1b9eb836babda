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
    """
    Overview:
        Check shape and type of a tensor, and name the field in the error.
    Arguments:
        - name (:obj:`str`): Name of the field.
        - x (:obj:`Optional[torch.Tensor]`): Value of the field.
        - shape (:obj:`Tuple[int, ...]`): Required shape.
        - symbols (:obj:`str`): The required shape in letters, as in the docstrings.
        - kind (:obj:`str`): ``floats``, ``int64``, or ``numbers`` for any real type, including bool.
        - optional (:obj:`bool`): Whether None is allowed.
    Raises:
        - ValueError: If the value is not a tensor, or has another shape or type.
    """
    if x is None and optional:
        return
    if not isinstance(x, Tensor):
        raise ValueError(f'{name} of {type(x).__name__}: must be a tensor of shape {symbols} = {tuple(shape)}')
    right = dict(floats=x.is_floating_point(), int64=x.dtype == torch.int64, numbers=not x.is_complex())[kind]
    if tuple(x.shape) != tuple(shape) or not right:
        raise ValueError(f'{name} {tuple(x.shape)} of {x.dtype}: must be {kind} of shape {symbols} = {tuple(shape)}')


def check_floats(name: str, x: Any) -> None:
    """
    Overview:
        Require a tensor of floats, of any shape.
    Arguments:
        - name (:obj:`str`): Name of the field.
        - x (:obj:`Any`): Value of the field.
    Raises:
        - ValueError: If the value is not such a tensor.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise ValueError(f'{name} of {getattr(x, "dtype", type(x).__name__)}: must be a tensor of floats')


def as_floats(x: Any) -> Any:
    """
    Overview:
        Convert a tensor of integers to float64. Any other value is returned unchanged.
    Arguments:
        - x (:obj:`Any`): Value of a field.
    Returns:
        - x (:obj:`Any`): The converted tensor.
    """
    return x.double() if isinstance(x, Tensor) and not (x.is_floating_point() or x.is_complex()) else x


def check_leading(name: str, x: Tensor, symbols: str) -> None:
    """
    Overview:
        Require a tensor of floats with as many dimensions as ``symbols`` has letters. Use it for the field whose \
        shape determines the shapes of the others.
    Arguments:
        - name (:obj:`str`): Name of the field.
        - x (:obj:`torch.Tensor`): Value of the field.
        - symbols (:obj:`str`): Shapes in letters, alternatives separated by `` or ``.
    Raises:
        - ValueError: If the value is not such a tensor.
    """
    if not isinstance(x, Tensor):
        raise ValueError(f'{name} of {type(x).__name__}: must be a tensor of floats of shape {symbols}')
    dims = [sum(letter.isalpha() for letter in shape) for shape in symbols.split(' or ')]
    if x.dim() not in dims or not x.is_floating_point():
        raise ValueError(f'{name} {tuple(x.shape)} of {x.dtype}: must be floats of shape {symbols}')


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """
    Overview:
        Require one of some values, and name the option in the error.
    Arguments:
        - name (:obj:`str`): Name of the option.
        - value (:obj:`Any`): Value of the option.
        - choices (:obj:`Sequence[str]`): The allowed values.
    Raises:
        - ValueError: If the value is not among them.
    """
    if value not in choices:
        raise ValueError(f'{name} = {value!r}: must be one of {choices}')


def check_number(name: str, value: float, low: float = 0, open_low: bool = False) -> None:
    """
    Overview:
        Require a finite number of at least ``low``.
    Arguments:
        - name (:obj:`str`): Name of the option.
        - value (:obj:`float`): Value of the option.
        - low (:obj:`float`): Lower bound.
        - open_low (:obj:`bool`): Whether ``low`` itself is excluded.
    Raises:
        - ValueError: If the value is not such a number.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float('inf')
    if not number or not (value > low if open_low else value >= low):
        raise ValueError(f'{name} = {value!r}: must be a finite number {"above" if open_low else "of at least"} {low}')
