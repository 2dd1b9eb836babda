"""Compare what a checkpoint contains with what a run would write, before a part of the run takes it."""
import math
import sys
from contextlib import contextmanager
from typing import Any, Iterator, Optional

import click
import torch
from torch import Tensor

from .errors import CheckpointError, describe


def check_content(found: Any, own: Any, where: str) -> None:
    """Raise a ``CheckpointError`` unless what a file contains has the types of ``own``: numbers and texts, tensors of
    floating-point or other numbers, and their nesting. An integer is at least 0 if the other one is, a number is finite
    if the other one is. Keys that only one of the two has are not compared, nor shapes and lengths."""
    difference = _difference(found, own, '')
    if difference is not None:
        raise CheckpointError(f'{where} has the wrong content: {difference}')


@contextmanager
def taking(where: str) -> Iterator[None]:
    """While a run takes what a file contains: errors other than a lack of memory become a ``CheckpointError``."""
    try:
        yield
    except (click.ClickException, torch.OutOfMemoryError):
        raise
    except Exception as error:  # what is missing or has another structure may raise anything
        raise CheckpointError(f'{where} does not have the content of a run like this ({describe(error)})') from error


def _difference(found: Any, own: Any, name: str) -> Optional[str]:
    pairs = []
    if isinstance(own, Tensor):
        allowed = own.dtype
        fits = isinstance(found, Tensor) and \
            (found.dtype == own.dtype or found.is_floating_point() and own.is_floating_point())
        found = found.dtype if isinstance(found, Tensor) else found
    elif isinstance(own, dict):
        allowed, fits = 'a dict', isinstance(found, dict)
        pairs = [(found[key], own[key], f'{name}.{key}' if name else str(key)) for key in own if fits and key in found]
    elif isinstance(own, (list, tuple)):
        allowed, fits = 'a list', isinstance(found, (list, tuple))
        pairs = [(*both, f'{name}.{i}') for i, both in enumerate(zip(found, own))] if fits else []
    elif isinstance(own, str):
        allowed, fits = 'a text', isinstance(found, str)
    elif isinstance(own, bool):  # None is an optimizer's own choice
        allowed, fits = 'True or False', isinstance(found, bool) or found is None and 'param_groups.' in name
    elif isinstance(own, int) and 'param_groups.' not in name:  # a counter
        low = 0 if own >= 0 else -2 ** 63
        allowed, fits = f'an integer of at least {low}', type(found) is int and low <= found < 2 ** 63
    elif isinstance(own, (int, float)):
        finite = type(found) in (int, float) and abs(found) <= sys.float_info.max  # math cannot take a larger integer
        allowed, fits = 'a number', finite or type(found) is float and not math.isfinite(own)
    else:
        allowed, fits = 'a number or None', not isinstance(found, str)
    if not fits:
        return f'{name} = {found!r:.80}, must be {allowed}' if name else f'{found!r:.80}, must be {allowed}'
    return next(filter(None, (_difference(*pair) for pair in pairs)), None)
