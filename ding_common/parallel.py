"""
Share the work of one run among several processes with ``torch.distributed``. A run of a single process uses the same
code: the communication functions below then return their input.
"""
import hashlib
import os
import re
import socket
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Iterator, List, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from .errors import ConfigError, PeerError
from .processes.packing import as_bytes, pack, unpack

# A process gives up after this wait. It is long, since the others may evaluate or sample long completions meanwhile.
TIMEOUT = timedelta(minutes=30)
SECONDS_TO_END = 3.  # how long after its connections close a process may take to end
_PLACES: List[Tuple[str, int]] = []  # machine and process id of each process, by rank

# How gloo, NCCL and the store of torch.distributed report a process that has exited, and one that does not respond.
# Errors of this process have the same types, so that only the text tells them apart.
_GONE = re.compile(
    'closed by peer|reset by peer|broken pipe|connection was likely closed|closed the connection|socket closed|'
    'pair closure|connection (refused|timed out)|remote process exited|ncclRemoteError|communicator was aborted', re.I
)
_SILENT = re.compile(
    'timed out waiting|timed out after|timeout after|client socket has timed out|collective operation timeout', re.I
)


def launched() -> int:
    """The number of processes that ``torchrun`` started; 1 without it."""
    return int(os.environ.get('WORLD_SIZE', 1))


def check_gpu() -> None:
    """Raise a ``ConfigError`` if ``policy.cuda`` is True and torch finds no GPU."""
    if not torch.cuda.is_available():
        raise ConfigError('policy.cuda = True: torch finds no GPU on this machine; set it to False.')


def gpu() -> int:
    """The index of this process's GPU among the visible ones: ``LOCAL_RANK``, or 0 if only one is visible, for example
    because a launcher sets ``CUDA_VISIBLE_DEVICES`` for each process."""
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
    """Join the processes that ``torchrun`` started. With ``cuda`` the GPU of each becomes its current device."""
    if launched() == 1 or dist.is_initialized():
        return
    if cuda:
        torch.cuda.set_device(gpu())
    try:
        with watched():
            dist.init_process_group('cpu:gloo,cuda:nccl' if cuda else 'gloo', timeout=TIMEOUT)
    except PeerError:
        raise
    except (ValueError, RuntimeError) as error:  # the address is missing, wrong or in use
        raise ConfigError(
            f"policy.multi_gpu = True: the processes cannot be connected ({' '.join(str(error).split()):.300}); start "
            'them with torchrun.'
        ) from error
    _PLACES[:] = all_gather((socket.gethostname(), os.getpid()))
    if cuda:
        _check_own_gpus()


def _check_own_gpus() -> None:
    """Reject two processes that see one GPU each and both the same one; NCCL fails much later and less clearly."""
    used = all_gather(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))
    for other, name in enumerate(used):
        first = used.index(name)
        if first != other:
            raise ConfigError(
                f'policy.cuda = True: processes {first} and {other} of this run would use the same GPU ({name}); start '
                'at most one process for each GPU (torchrun --nproc_per_node).'
            )


def end(failed: bool = False) -> None:
    """Destroy the process group. That of NCCL is kept if this process ends with an error: destroying it would wait for
    the others, which wait for this process. Its connections close when the process exits."""
    if dist.is_initialized() and not (failed and 'nccl' in dist.get_backend_config()):
        dist.destroy_process_group()


def rank() -> int:
    """The rank of this process. Rank 0 writes files and prints."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def processes_per_machine() -> int:
    """The number of processes of this run on each machine, which must be the same."""
    numbers = all_gather(int(os.environ.get('LOCAL_WORLD_SIZE', world_size())))
    if len(set(numbers)) > 1:
        raise ConfigError(
            f"policy.shard = 'machine': machines run {min(numbers)} and {max(numbers)} processes; must be the same "
            'number on all of them (torchrun --nproc_per_node).'
        )
    return numbers[0]


def share(number: int) -> range:
    """This process's share of ``number`` items: one contiguous block per process, in the order of ranks."""
    return range(rank() * number // world_size(), (rank() + 1) * number // world_size())


def all_gather(thing: Any) -> List[Any]:
    """The tensors and plain objects of all processes, in the order of ranks. What arrives is data."""
    if world_size() == 1:
        return [thing]
    data = pack(thing).to(_device())
    sizes = [data.new_zeros(1, dtype=torch.long) for _ in range(world_size())]
    with watched():
        dist.all_gather(sizes, data.new_full((1, ), len(data), dtype=torch.long))
    most = max(map(int, sizes))
    found = [data.new_empty(most) for _ in sizes]
    with watched():
        dist.all_gather(found, torch.nn.functional.pad(data, (0, most - len(data))))
    return [unpack(part[:int(size)].cpu()) for part, size in zip(found, sizes)]


def broadcast_object(thing: Any) -> Any:
    """The object of rank 0 in all processes, of the types of ``all_gather``. Its tensors are sent one by one, without a
    copy beside the others, and are on the CPU in the other processes."""
    if world_size() == 1:
        return thing
    tensors: List[Tensor] = []
    data = pack(thing, tensors) if rank() == 0 else torch.empty(0, dtype=torch.uint8)
    size = torch.tensor([len(data)])
    _broadcast_bytes(size)
    if rank() > 0:
        data = torch.empty(int(size), dtype=torch.uint8)
    _broadcast_bytes(data)
    if rank() > 0:
        thing = unpack(data, tensors)
    for tensor in tensors:
        if tensor.numel() > 0:
            _broadcast_bytes(as_bytes(tensor))
    return thing


def _device() -> torch.device:
    """Where what is sent must be: on the GPU in a process group of NCCL alone, such as DI-engine's DDPContext makes."""
    return torch.device('cpu' if 'cpu' in dist.get_backend_config() else 'cuda')


def _broadcast_bytes(data: Tensor) -> None:
    """Copy a tensor on the CPU from rank 0 to all processes, in place."""
    sent = data.to(_device())
    with watched():
        dist.broadcast(sent, src=0)
    if sent is not data and rank() > 0:
        data.copy_(sent)


def broadcast(tensors: List[Tensor]) -> None:
    """Copy tensors from rank 0 to all processes, in place. Other shapes or types in one are a ``PeerError`` in all."""
    if world_size() == 1:
        return
    _check_alike(tensors)
    for tensor in tensors:
        with watched():
            dist.broadcast(tensor, src=0)


def all_reduce(tensors: List[Tensor]) -> None:
    """Sum tensors over all processes, in place. Other shapes or types in one are a ``PeerError`` in all."""
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
    """Check shapes and types. On a message of unexpected length gloo aborts the process, hangs, or accepts the data."""
    kinds = [f'{t.dtype} {tuple(t.shape)}' for t in tensors]
    number = int.from_bytes(hashlib.sha256('\n'.join(kinds).encode()).digest()[:7], 'big')
    extremes = torch.tensor([number, -number], device=_device())
    with watched():
        dist.all_reduce(extremes, dist.ReduceOp.MAX)
    if extremes[0] == -extremes[1]:
        return
    found = all_gather(kinds)
    other = next(i for i, of_process in enumerate(found) if of_process != found[0])
    lengths = f'{len(found[0])} and {len(found[other])} tensors'
    shown = next((f'{a} and {b}' for a, b in zip(found[0], found[other]) if a != b), lengths)
    raise PeerError(
        f'processes 0 and {other} of this run differ: they have {shown}. All processes need the same config, code and '
        'models.'
    )


@contextmanager
def watched() -> Iterator[None]:
    """Turn errors caused by another process, which has exited or does not respond, into a ``PeerError``. It encloses
    code that waits for other processes, and also works as a decorator."""
    try:
        yield
    except RuntimeError as error:  # raised by torch.distributed for its backends, and for other reasons
        text = str(error)
        gone, silent = _GONE.search(text), _SILENT.search(text)
        if not gone and not silent:
            raise
        minutes = TIMEOUT.total_seconds() / 60
        what = 'has exited' if gone else f'has not responded for {minutes:g} minutes'
        who = _who_ended() if gone else 'another process'
        raise PeerError(
            f"process {os.environ.get('RANK')}: {who} of this run {what}, so this one exits too; that process reports "
            f'the reason, unless it was killed ({text.strip().splitlines()[0]:.200})'
        ) from error


def _who_ended() -> str:
    """The first process of this machine that has ended, by rank; another one if none is found."""
    deadline = time.monotonic() + SECONDS_TO_END
    while time.monotonic() < deadline:
        for number, (machine, pid) in enumerate(_PLACES):
            if machine == socket.gethostname() and has_ended(pid):
                return f'process {number} (pid {pid})'
        time.sleep(0.05)
    return 'another process'


def has_ended(pid: int) -> bool:
    """Whether a process of this user has ended, also if its parent has not asked for its status yet."""
    try:
        os.kill(pid, 0)
        with open(f'/proc/{pid}/stat', encoding='utf-8', errors='replace') as f:
            return f.read().rpartition(')')[2].split()[0] in 'ZX'
    except (ProcessLookupError, PermissionError):  # gone, or its number is that of another user's process by now
        return True
    except FileNotFoundError:
        return os.path.exists('/proc/self/stat')  # else it is not Linux
