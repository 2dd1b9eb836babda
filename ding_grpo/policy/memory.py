from contextlib import contextmanager
from typing import Iterator

import torch

from ding_common import ConfigError


@contextmanager
def memory_advice(what: str, advice: str) -> Iterator[None]:
    """
    Overview:
        Replace an out-of-memory error by one that says what to do.
    Arguments:
        - what (:obj:`str`): What the block does, such as ``learning``.
        - advice (:obj:`str`): What needs less memory.
    Raises:
        - ConfigError: If the block runs out of memory.
    """
    try:
        yield
    except RuntimeError as error:
        # torch.OutOfMemoryError is a GPU's. A processor's allocator raises a plain RuntimeError.
        if not isinstance(error, torch.OutOfMemoryError) and 'you tried to allocate' not in str(error):
            raise
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f'out of memory while {what} ({reason}). {advice}') from error
