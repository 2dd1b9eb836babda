"""What a function is given, held against what it needs."""
from typing import Optional, Tuple

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
        Refuse a tensor of another shape or type, by an error that names it.
    Arguments:
        - name (:obj:`str`): The field.
        - x (:obj:`Optional[torch.Tensor]`): What was given.
        - shape (:obj:`Tuple[int, ...]`): What it must be.
        - symbols (:obj:`str`): That shape in letters, as the docstrings have it.
        - kind (:obj:`str`): ``floats``, ``int64``, or ``numbers`` for any type, bool included.
        - optional (:obj:`bool`): Whether None, a field left out, passes.
    Raises:
        - ValueError: If it is anything else.
    """
    if x is None and optional:
        return
    if not isinstance(x, Tensor):
        raise ValueError(f'{name} of {type(x).__name__}: must be a tensor of shape {symbols} = {tuple(shape)}')
    right = dict(floats=x.is_floating_point(), int64=x.dtype == torch.int64, numbers=not x.is_complex())[kind]
    if tuple(x.shape) != tuple(shape) or not right:
        raise ValueError(f'{name} {tuple(x.shape)} of {x.dtype}: must be {kind} of shape {symbols} = {tuple(shape)}')


def check_leading(name: str, x: Tensor, symbols: str) -> None:
    """
    Overview:
        Refuse what is no tensor of floats with as many dimensions as ``symbols`` has letters, for the field whose \
        shape the others must have.
    Arguments:
        - name (:obj:`str`): The field.
        - x (:obj:`torch.Tensor`): What was given.
        - symbols (:obj:`str`): Shapes in letters, alternatives separated by `` or ``.
    Raises:
        - ValueError: If it is anything else.
    """
    if not isinstance(x, Tensor):
        raise ValueError(f'{name} of {type(x).__name__}: must be a tensor of floats of shape {symbols}')
    dims = [sum(letter.isalpha() for letter in shape) for shape in symbols.split(' or ')]
    if x.dim() not in dims or not x.is_floating_point():
        raise ValueError(f'{name} {tuple(x.shape)} of {x.dtype}: must be floats of shape {symbols}')


def check_number(name: str, value: float, low: float = 0, open_low: bool = False) -> None:
    """
    Overview:
        Refuse what is no finite number, or is below ``low``.
    Arguments:
        - name (:obj:`str`): The option.
        - value (:obj:`float`): What was given.
        - low (:obj:`float`): The least.
        - open_low (:obj:`bool`): Whether ``low`` itself is refused too.
    Raises:
        - ValueError: If it is anything else.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float('inf')
    if not number or not (value > low if open_low else value >= low):
        raise ValueError(f'{name} = {value!r}: must be a finite number {"above" if open_low else "of at least"} {low}')
