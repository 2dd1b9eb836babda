"""
Several processes that share the work of one run, by ``torch.distributed``. A run of one process is the same code: each
function below then gives back what it was given.
"""
import hashlib
import io
import os
import pickle
import re
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Iterator, List, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from .errors import ConfigError, PeerError

# A process that waits for longer gives up: the others may evaluate, or sample long completions, meanwhile.
TIMEOUT = timedelta(minutes=30)

# How gloo, NCCL and the store of torch.distributed report a process that is gone, and one that does not answer. They
# report errors of this process by the same types, so that the text alone separates them.
_GONE = re.compile(
    'closed by peer|reset by peer|broken pipe|connection was likely closed|closed the connection|socket closed|'
    'pair closure|connection (refused|timed out)|remote process exited|ncclRemoteError|communicator was aborted', re.I
)
_SILENT = re.compile(
    'timed out waiting|timed out after|timeout after|client socket has timed out|collective operation timeout', re.I
)


def launched() -> int:
    """
    Overview:
        How many processes ``torchrun`` has started; 1 without it.
    """
    return int(os.environ.get('WORLD_SIZE', 1))


def check_gpu() -> None:
    """
    Overview:
        Refuse ``policy.cuda = True`` where there is no GPU.
    Raises:
        - ConfigError: If torch finds none.
    """
    if not torch.cuda.is_available():
        raise ConfigError('policy.cuda = True: torch finds no GPU on this machine; set it to False.')


def gpu() -> int:
    """
    Overview:
        The number of the GPU of this process among those that it sees: its number on its machine, ``LOCAL_RANK``. \
        Where it sees one GPU alone, as when a launcher sets ``CUDA_VISIBLE_DEVICES`` for each process, that one.
    Raises:
        - ConfigError: If there is no GPU, or fewer than processes.
    """
    check_gpu()
    count, number = torch.cuda.device_count(), int(os.environ.get('LOCAL_RANK', 0))
    processes = int(os.environ.get('LOCAL_WORLD_SIZE', number + 1))
    if count == 1:
        return 0
    if processes > count:
        raise ConfigError(
            f'policy.cuda = True: {processes} processes run on this machine, which has {count} GPUs; start at most one '
            'process for each GPU (torchrun --nproc_per_node).'
        )
    return number


def start(cuda: bool) -> None:
    """
    Overview:
        Join the other processes that ``torchrun`` has started.
    Arguments:
        - cuda (:obj:`bool`): Whether tensors on GPUs are summed, one GPU a process. That GPU becomes the current one, \
            to which ``model.cuda()`` goes.
    Raises:
        - ConfigError: If there are fewer GPUs than processes, or the processes cannot be connected.
        - PeerError: If another process does not come.
    """
    if launched() == 1 or dist.is_initialized():
        return
    if cuda:
        torch.cuda.set_device(gpu())
    try:
        with watched():
            dist.init_process_group('cpu:gloo,cuda:nccl' if cuda else 'gloo', timeout=TIMEOUT)
    except PeerError:
        raise
    except (ValueError, RuntimeError) as error:  # no address, a wrong one, or one that is in use
        raise ConfigError(
            f"policy.multi_gpu = True: the processes cannot be connected ({' '.join(str(error).split()):.300}); start "
            'them with torchrun.'
        ) from error
    if cuda:
        _check_own_gpus()


def _check_own_gpus() -> None:
    """Two processes may see one GPU each, and both the same, which NCCL refuses much later and in other words."""
    used = all_gather(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))
    for other, name in enumerate(used):
        first = used.index(name)
        if first != other:
            raise ConfigError(
                f'policy.cuda = True: processes {first} and {other} of this run would use the same GPU ({name}); start '
                'at most one process for each GPU (torchrun --nproc_per_node).'
            )


def end(failed: bool = False) -> None:
    """
    Overview:
        Leave the others.
    Arguments:
        - failed (:obj:`bool`): Whether this process ends with an error. NCCL would then wait for the others, which \
            wait for this process; its connections close when the process ends.
    """
    if dist.is_initialized() and not (failed and 'nccl' in dist.get_backend_config()):
        dist.destroy_process_group()


def rank() -> int:
    """
    Overview:
        The number of this process, from 0; the one with 0 writes and shows.
    """
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
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
    return range(rank() * number // world_size(), (rank() + 1) * number // world_size())


def all_gather(thing: Any) -> List[Any]:
    """
    Overview:
        What each process gives, in their order. It is pickled: the processes trust each other.
    """
    if world_size() == 1:
        return [thing]
    found = [None] * world_size()
    with watched():
        dist.all_gather_object(found, thing)
    return found


def broadcast_object(thing: Any) -> Any:
    """
    Overview:
        What the first process gives. Tensors in it are sent one by one, without a copy in a pickle; in the other \
        processes they are on the processor.
    """
    if world_size() == 1:
        return thing
    buffer, tensors = io.BytesIO(), []
    if rank() == 0:
        _Pickler(buffer, tensors).dump(thing)
    message = [buffer.getvalue()]
    with watched():
        dist.broadcast_object_list(message, src=0)
    if rank() > 0:
        thing = _Unpickler(io.BytesIO(message[0]), tensors).load()
    for tensor in tensors:
        if tensor.numel() > 0:
            with watched():  # as bytes: gloo knows neither bool nor complex
                dist.broadcast(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8), src=0)
    return thing


class _Pickler(pickle.Pickler):
    """Of tensors it writes shape and type alone, and lists them."""

    def __init__(self, file: io.BytesIO, tensors: List[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_id(self, thing: Any) -> Any:
        if not isinstance(thing, Tensor):
            return None
        self._tensors.append(thing)
        return thing.shape, thing.dtype


class _Unpickler(pickle.Unpickler):
    """Makes empty tensors in their places, and lists them."""

    def __init__(self, file: io.BytesIO, tensors: List[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, found: Any) -> Tensor:
        shape, dtype = found
        self._tensors.append(torch.empty(shape, dtype=dtype))
        return self._tensors[-1]


def broadcast(tensors: List[Tensor]) -> None:
    """
    Overview:
        Give tensors the values that they have in the first process.
    Arguments:
        - tensors (:obj:`List[torch.Tensor]`): Of the same shapes and types in each process.
    Raises:
        - PeerError: If they are not; in every process.
    """
    if world_size() == 1:
        return
    _check_alike(tensors)
    for tensor in tensors:
        with watched():
            dist.broadcast(tensor, src=0)


def all_reduce(tensors: List[Tensor]) -> None:
    """
    Overview:
        Sum tensors over the processes, in place, those of one type in one message.
    Arguments:
        - tensors (:obj:`List[torch.Tensor]`): Of the same shapes and types in each process.
    Raises:
        - PeerError: If they are not; in every process.
    """
    if world_size() == 1:
        return
    _check_alike(tensors)
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        same = [t for t in tensors if t.dtype is dtype]
        flat = torch.cat([t.reshape(-1) for t in same])
        with watched():
            dist.all_reduce(flat)
        for t, part in zip(same, flat.split([t.numel() for t in same])):
            t.copy_(part.view_as(t))


def _check_alike(tensors: List[Tensor]) -> None:
    """gloo aborts a process over a message of another length than it waits for, hangs, or takes what comes."""
    kinds = [f'{t.dtype} {tuple(t.shape)}' for t in tensors]
    number = int.from_bytes(hashlib.sha256('\n'.join(kinds).encode()).digest()[:7], 'big')
    extremes = torch.tensor([number, -number])
    with watched():
        dist.all_reduce(extremes, dist.ReduceOp.MAX)
    if extremes[0] != -extremes[1]:
        _tell_difference(all_gather(kinds))


def _tell_difference(kinds: List[List[str]]) -> NoReturn:
    other = next(i for i, of_process in enumerate(kinds) if of_process != kinds[0])
    pairs = list(zip(kinds[0], kinds[other]))
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    shown = f'{len(kinds[0])} and {len(kinds[other])} tensors' if at is None else ' and '.join(pairs[at])
    raise PeerError(
        f'processes 0 and {other} of this run do not do the same: they have {shown}. All need the same config, code '
        'and models.'
    )


@contextmanager
def watched() -> Iterator[None]:
    """
    Overview:
        Where a process waits for others: separates their end from an error of its own, which is raised as it is. \
        Also a decorator.
    Raises:
        - PeerError: If another process has ended, or does not answer.
    """
    try:
        yield
    except RuntimeError as error:  # what torch.distributed raises of its backends, and much else
        text = str(error)
        gone, silent = _GONE.search(text), _SILENT.search(text)
        if not gone and not silent:
            raise
        minutes = TIMEOUT.total_seconds() / 60
        what = 'has ended' if gone else f'has not answered for {minutes:g} minutes'
        raise PeerError(
            f"process {os.environ.get('RANK')}: another process of this run {what}, so this one ends too; that process "
            f'reports the reason ({text.strip().splitlines()[0]:.200})'
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
