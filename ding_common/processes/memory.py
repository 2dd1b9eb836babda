"""How much memory the parts of an update hold."""
import os
import resource
import sys
from contextlib import contextmanager
from typing import Callable, Dict, Iterator, Union

import torch

from ding_common.errors import ConfigError

STATM = '/proc/self/statm'  # of Linux
MEBI = 2 ** 20


def peak_memory() -> float:
    """The largest resident memory of this process since its start, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (MEBI if sys.platform == 'darwin' else 2 ** 10)


def resident_memory() -> float:
    """The resident memory of this process now, in MiB; 0 on systems other than Linux."""
    try:
        with open(STATM, encoding='utf-8') as f:
            return int(f.read().split()[1]) * os.sysconf('SC_PAGE_SIZE') / MEBI
    except FileNotFoundError:
        return 0.


class MemoryMeter:
    """``most``: the largest memory of each part of an update, in MiB. On a GPU it is the peak of what torch allocated
    on it during the part. On a CPU it is the resident memory of this process at the borders of the part, or the peak of
    the process if the part raised it: a part that holds less than an earlier one and frees it is seen at its borders
    only. Of the blocks of a part, the first, second, fourth, eighth and so on are measured, so that many short blocks
    cost little."""

    def __init__(
            self,
            device: Union[str, torch.device],
            resident: Callable[[], float] = resident_memory,
            peak: Callable[[], float] = peak_memory
    ) -> None:
        self._device, self._resident, self._peak = torch.device(device), resident, peak
        self._blocks: Dict[str, int] = {}
        self.most: Dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        number = self._blocks[name] = self._blocks.get(name, 0) + 1
        if number & (number - 1):
            yield
            return
        cuda = self._device.type == 'cuda'
        if cuda:
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            before, peak = self._resident(), self._peak()
        yield
        if cuda:
            found = torch.cuda.max_memory_allocated(self._device) / MEBI
        else:
            found = max(before, self._resident(), self._peak() if self._peak() > peak else 0.)
        self.most[name] = max(found, self.most.get(name, 0.))


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory is used up: torch raises its own on a GPU, a RuntimeError on a CPU."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or 'you tried to allocate' in str(error)


@contextmanager
def memory_advice(what: str, advice: str) -> Iterator[None]:
    """Replace an out-of-memory error while ``learning``, for example, by a ``ConfigError`` with advice."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f'out of memory while {what} ({reason}). {advice}') from error
