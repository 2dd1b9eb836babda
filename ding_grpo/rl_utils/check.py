"""What a function is given, held against what it needs."""
from typing import Optional, Tuple

import torch
from torch import Tensor

KINDS = ('floats', 'int64', 'numbers')


def check_tensor(name: str, x: Optional[Tensor], shape: Tuple[int, ...], symbols: str, kind: str = 'floats') -> None:
    """
    Overview:
        Refuse a tensor of another shape or type, by an error that names it. None, a field left out, passes.
    Arguments:
        - name (:obj:`str`): The field.
        - x (:obj:`Optional[torch.Tensor]`): What was given.
        - shape (:obj:`Tuple[int, ...]`): What it must be.
        - symbols (:obj:`str`): That shape in letters, as the docstrings have it.
        - kind (:obj:`str`): ``floats``, ``int64``, or ``numbers`` for any type, bool included.
    Raises:
        - ValueError: If it is anything else.
    """
    if x is None:
        return
    if not isinstance(x, Tensor):
        raise ValueError(f'{name} of {type(x).__name__}: must be a tensor of shape {symbols} = {tuple(shape)}')
    right = dict(floats=x.is_floating_point(), int64=x.dtype == torch.int64, numbers=not x.is_complex())[kind]
    if tuple(x.shape) != tuple(shape) or not right:
        raise ValueError(f'{name} {tuple(x.shape)} of {x.dtype}: must be {kind} of shape {symbols} = {tuple(shape)}')
