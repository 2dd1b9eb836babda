"""
Several processes that share the work of one run, by ``torch.distributed``. A run of one process is the same code: each
function below then gives back what it was given.
"""
import os
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Iterator, List

import torch
import torch.distributed as dist
from torch import Tensor

from .errors import ConfigError, PeerError

# A process that waits for longer gives up: the others may evaluate, or sample long completions, meanwhile.
TIMEOUT = timedelta(minutes=30)


def launched() -> int:
    """
    Overview:
        How many processes ``torchrun`` has started; 1 without it.
    """
    return int(os.environ.get('WORLD_SIZE', 1))


def start(cuda: bool) -> None:
    """
    Overview:
        Join the other processes that ``torchrun`` has started.
    Arguments:
        - cuda (:obj:`bool`): Whether tensors on GPUs are summed, one GPU a process.
    """
    if launched() == 1 or dist.is_initialized():
        return
    if cuda:
        torch.cuda.set_device(int(os.environ['LOCAL_RANK']) % torch.cuda.device_count())
    with _peers():
        dist.init_process_group('cpu:gloo,cuda:nccl' if cuda else 'gloo', timeout=TIMEOUT)


def end() -> None:
    """
    Overview:
        Leave the others.
    """
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """
    Overview:
        The number of this process, from 0; the one with 0 writes and shows.
    """
    return dist.get_rank() if dist.is_initialized() else 0


def size() -> int:
    """
    Overview:
        The number of processes.
    """
    return dist.get_world_size() if dist.is_initialized() else 1


def share(number: int) -> range:
    """
    Overview:
        Which of so many things are this process's: a block of them, the blocks in the order of the processes.
    """
    return range(rank() * number // size(), (rank() + 1) * number // size())


def gather(thing: Any) -> List[Any]:
    """
    Overview:
        What each process gives, in their order. It is pickled: the processes trust each other.
    """
    if size() == 1:
        return [thing]
    found = [None] * size()
    with _peers():
        dist.all_gather_object(found, thing)
    return found


def of_first(thing: Any) -> Any:
    """
    Overview:
        What the first process gives.
    """
    if size() == 1:
        return thing
    found = [thing]
    with _peers():
        dist.broadcast_object_list(found, src=0)
    return found[0]


def copy_first(tensors: List[Tensor]) -> None:
    """
    Overview:
        Give tensors the values that they have in the first process.
    """
    for tensor in tensors if size() > 1 else ():
        with _peers():
            dist.broadcast(tensor, src=0)


def add(tensors: List[Tensor]) -> None:
    """
    Overview:
        Sum tensors over the processes, in place, those of one type in one message.
    Arguments:
        - tensors (:obj:`List[torch.Tensor]`): Of the same shapes and types in each process.
    """
    if size() == 1:
        return
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        same = [t for t in tensors if t.dtype is dtype]
        flat = torch.cat([t.reshape(-1) for t in same])
        with _peers():
            dist.all_reduce(flat)
        for t, part in zip(same, flat.split([t.numel() for t in same])):
            t.copy_(part.view_as(t))


@contextmanager
def _peers() -> Iterator[None]:
    """Where a process waits for others, and finds that one of them is gone."""
    try:
        yield
    except RuntimeError as error:  # all that torch.distributed raises
        reason = str(error).strip().splitlines()[0]
        raise PeerError(
            f"process {os.environ.get('RANK')}: another process of this run ended, so this one does too; why stands "
            f'above or below ({reason:.200})'
        ) from error


def check_launch(asked: bool) -> None:
    """
    Overview:
        Hold ``policy.multi_gpu`` to how the run was started.
    Raises:
        - ConfigError: If they do not agree: each of several processes would make the same run by itself.
    """
    if launched() > 1 and not asked:
        raise ConfigError(
            f'policy.multi_gpu = {asked!r}: torchrun has started {launched()} processes; must be True for them to '
            'share one run.'
        )
