from contextlib import contextmanager
from typing import Iterator

import torch

from ding_common import ConfigError


@contextmanager
def memory_advice(what: str, advice: str) -> Iterator[None]:
    """
    Overview:
        Replace an out-of-memory error by an error with advice.
    Arguments:
        - what (:obj:`str`): The activity of the block, such as ``learning``.
        - advice (:obj:`str`): How to reduce memory, as sentences.
    Raises:
        - ConfigError: If the block runs out of memory.
    """
    try:
        yield
    except RuntimeError as error:
        # torch raises OutOfMemoryError on a GPU, and a plain RuntimeError on a CPU.
        if not isinstance(error, torch.OutOfMemoryError) and 'you tried to allocate' not in str(error):
            raise
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f'out of memory while {what} ({reason}). {advice}') from error
