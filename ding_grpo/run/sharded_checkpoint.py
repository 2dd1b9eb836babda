"""
Checkpoints of a model that is divided among processes (``policy.shard``). Each process writes its parts of the tensors
into a folder, by ``torch.distributed.checkpoint`` in safetensors files. The checkpoint's file is written last. It
contains the rest of the state, the name of the folder and a CRC-32 of each file in it. A kill therefore leaves the
previous checkpoint, and a folder that no file names, which the next save deletes. Any number of processes can read it.
"""
import glob
import os
import shutil
import warnings
import zlib
from contextlib import contextmanager
from typing import Any, Collection, Dict, Iterator, Optional

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, empty

from ding_common import CheckpointError, check_links, describe, parallel
from ding_common.hub.model_folder import check_archive

SUFFIX = '.shards'
ENTRY = 'shards'  # of a checkpoint's state: what is known about its folder
TIED = 'tied'  # of its state: the names of weights that are another weight
_PIECE = 2 ** 24  # bytes that are read at a time


def write_shards(path: str, state: Dict[str, Any]) -> Dict[str, Any]:
    """Write the tensors of a checkpoint's state, of which ``path`` is the file: ``model``, ``optimizer`` and maybe
    ``reference``. All processes call it together. Returns the state without these tensors, for the file. Raises
    ``CheckpointError`` if they cannot be written, or the processes have no common folder."""
    folder = parallel.broadcast_object(_new_folder(path) if parallel.rank() == 0 else None)
    rest, tensors = _divide(state)
    try:
        with _quiet(), parallel.watched():
            writer = HuggingFaceStorageWriter(folder, save_distributed=True)
            dcp.save(tensors, storage_writer=writer, no_dist=parallel.world_size() == 1)
    except (CheckpointException, OSError) as error:
        raise _not_written(path, _told(error)) from error
    mine = glob.glob(os.path.join(glob.escape(folder), f'shard-{parallel.rank() + 1:05d}-*'))
    sums = {
        name: number
        for own in parallel.all_gather({os.path.basename(f): _sum(f)
                                        for f in mine}) for name, number in own.items()
    }
    if parallel.rank() == 0:
        missing = [name for name in sums if not os.path.exists(os.path.join(folder, name))]
        if missing:
            raise _not_written(
                path, f'{missing[0]}, which another process wrote, is not in {os.path.normpath(folder)}; with '
                'policy.shard all machines need a common folder for checkpoints'
            )
    return dict(rest, **{ENTRY: dict(folder=os.path.basename(folder), sums=sums)})


def read_shards(
        path: str,
        state: Dict[str, Any],
        mesh: Optional[DeviceMesh] = None,
        buffers: Collection[str] = (),
        only: str = ''
) -> Dict[str, Any]:
    """Add to the state in a checkpoint's file the tensors from its folder. Raises ``CheckpointError`` if a file is
    missing or damaged. ``mesh``: the processes among which the tensors are divided, all of which call this together;
    None for whole tensors, on the CPU. ``buffers``: of the model, which every process has whole. ``only``: the entry to
    read, such as ``model``; '' for all."""
    try:
        reader = HuggingFaceStorageReader(folder_of(path, state))
        found = {name: m for name, m in reader.read_metadata().state_dict_metadata.items() if name.startswith(only)}
        tensors = {name: _empty(m, None if _plain(name, m, buffers) else mesh) for name, m in found.items()}
        if tensors:
            with _quiet(), parallel.watched():
                dcp.load(tensors, storage_reader=reader, no_dist=mesh is None)
    except Exception as error:  # a damaged file may raise anything, from OSError to SafetensorError
        raise _damaged(path, _told(error)) from error
    return _join(state, tensors)


def check_shards(path: str, state: Dict[str, Any]) -> None:
    """Raise ``CheckpointError`` if a file in the folder of a checkpoint is missing or damaged, or elsewhere."""
    folder, sums = folder_of(path, state), state[ENTRY]['sums']
    if not folder.endswith(SUFFIX) or any(os.path.basename(name) != name for name in sums):
        raise _damaged(
            path, f'{[os.path.basename(folder), *sums]!r:.200} are not the names of a folder and of its files'
        )
    if os.path.isdir(folder):
        check_links(folder, path)
    for name, number in sums.items():
        file = os.path.join(folder, name)
        if not os.path.isfile(file):
            raise _damaged(path, f'its file {os.path.normpath(file)} is missing')
        if _sum(file) != number:
            raise _damaged(path, f'the checksum of {os.path.normpath(file)} does not match')


def folder_of(path: str, state: Dict[str, Any]) -> str:
    """The folder with the tensors of a checkpoint, which is beside its file."""
    return os.path.join(os.path.dirname(path), os.path.basename(state[ENTRY]['folder']))


def prune_shards(folder: str) -> None:
    """Delete the folders that no checkpoint names: those of deleted or replaced checkpoints, and what a kill left. If a
    checkpoint cannot be read, all of them are kept."""
    folders = glob.glob(os.path.join(glob.escape(folder), f'*{SUFFIX}'))
    if not folders:
        return
    named = set()
    for path in glob.glob(os.path.join(glob.escape(folder), '*.pth.tar*')):
        try:
            check_archive(path)
            state = torch.load(path, map_location='cpu', weights_only=True, mmap=True)
        except Exception:  # damaged files raise many kinds
            return
        if ENTRY in state:
            named.add(state[ENTRY]['folder'])
    for path in folders:
        if os.path.basename(path) not in named:
            shutil.rmtree(path)


def _new_folder(path: str) -> str:
    """A folder that does not exist: a checkpoint of the same name keeps its own until it is replaced."""
    number = 0
    while os.path.exists(folder := f"{path.removesuffix('.pth.tar')}.{number}{SUFFIX}"):
        number += 1
    return folder


def _divide(state: Dict[str, Any]) -> tuple:
    """The state without its large tensors, and these by name. Of tied weights only the first is there."""
    tensors = {f'{entry}/{name}': t for entry in ('model', 'reference') for name, t in state.get(entry, {}).items()}
    tied = parallel.broadcast_object(_tied(tensors))  # the first process has a part of every weight
    tensors = {name: t for name, t in tensors.items() if name not in tied}
    for number, values in state['optimizer']['state'].items():
        tensors.update({f'optimizer/{number}/{name}': value for name, value in values.items()})
    rest = {name: value for name, value in state.items() if name not in ('model', 'reference')}
    return dict(rest, optimizer=dict(state['optimizer'], state={}), **{TIED: tied}), tensors


def _tied(tensors: Dict[str, Tensor]) -> Dict[str, str]:
    """The names of weights that are another weight, with its name."""
    tied: Dict[str, str] = {}
    first: Dict[int, str] = {}
    for name, tensor in tensors.items():
        part = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if part.numel() > 0 and first.setdefault(part.data_ptr(), name) != name:
            tied[name] = first[part.data_ptr()]
    return tied


def _join(state: Dict[str, Any], tensors: Dict[str, Tensor]) -> Dict[str, Any]:
    """The reverse of ``_divide``."""
    joined: Dict[str, Any] = dict(state, optimizer=dict(state['optimizer'], state={}))
    tied = joined.pop(TIED, {})  # absent in checkpoints of older versions
    tensors = dict(tensors, **{name: tensors[first] for name, first in tied.items() if first in tensors})
    for name, tensor in tensors.items():
        entry, name = name.split('/', 1)
        if entry == 'optimizer':
            number, name = name.split('/', 1)
            joined['optimizer']['state'].setdefault(int(number), {})[name] = tensor
        else:
            joined.setdefault(entry, {})[name] = tensor
    return joined


def _plain(name: str, found: TensorStorageMetadata, buffers: Collection[str]) -> bool:
    """Whether every process has a tensor whole: a buffer, or a number, such as the optimizer's count of steps."""
    return len(found.size) == 0 or name.split('/', 1)[1] in buffers


def _empty(found: TensorStorageMetadata, mesh: Optional[DeviceMesh]) -> Tensor:
    if mesh is None:
        return torch.empty(found.size, dtype=found.properties.dtype)
    placements = [*(Replicate() for _ in range(mesh.ndim - 1)), Shard(0)]
    return empty(found.size, dtype=found.properties.dtype, device_mesh=mesh, placements=placements)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide torch's warning that a process alone reads and writes alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'torch.distributed is disabled', UserWarning)
        yield


def _sum(file: str) -> int:
    total = 0
    with open(file, 'rb') as f:
        while piece := f.read(_PIECE):
            total = zlib.crc32(piece, total)
    return total


def _told(error: Exception) -> str:
    errors = [e for e, _ in error.failures.values()] if isinstance(error, CheckpointException) else [error]
    return '; '.join(map(describe, errors))


def _not_written(path: str, reason: str) -> CheckpointError:
    return CheckpointError(f'the checkpoint {os.path.normpath(path)} could not be written ({reason})')


def _damaged(path: str, reason: str) -> CheckpointError:
    return CheckpointError(f'the checkpoint {os.path.normpath(path)} is damaged ({reason})')
