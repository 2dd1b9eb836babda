"""
Checkpoints that are either complete or absent. A file is written under a temporary name, flushed to the disk and then
renamed, so a kill or a full disk leaves the previous file intact. ``torch.save`` writes a zip archive with a CRC-32 of
every record. Reading verifies these checksums, which detects any later damage. When one is written: ``saver.py``; what
is in it: ``run_state.py``.
"""
import fcntl
import glob
import os
import pickle
import platform
import re
import shutil
import zipfile
from contextlib import contextmanager
from typing import IO, Any, Dict, Iterator, List, NamedTuple, Optional

import torch
from safetensors import SafetensorError

from ding_common import CheckpointError
from ding_common.content import check_content, taking
from ding_common.hub.model_folder import check_archive
from ding_grpo.logs.screen import show

from .sharded_checkpoint import ENTRY, check_shards, prune_shards, read_shards

# What checkpoints of any policy may contain.
_COMMON = {'last_iter': 0, 'last_step': 0, 'run': {'seed': 0}, ENTRY: {'folder': '', 'sums': {}}}
_NUMBERED = re.compile(r'iteration_(\d+)\.pth\.tar')


class Found(NamedTuple):
    """A checkpoint."""
    path: str
    state: Dict[str, Any]


def lock(folder: str) -> IO[str]:
    """Lock a run's folder for this process, until the returned file is closed or the process ends. Raises
    ``CheckpointError`` if another process has locked it."""
    file = open(os.path.join(folder, '.lock'), 'a+', encoding='utf-8')
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # which of them depends on the system
        file.seek(0)
        raise CheckpointError(
            f'exp_name = {folder!r}: another run ({file.read()}) writes into this folder. Wait until it ends, or use '
            'another exp_name.'
        ) from None
    except OSError as error:
        show(f'{folder} cannot be locked ({error.strerror}): start no second run in it')
        return file
    file.truncate(0)
    print(f'process {os.getpid()} on {platform.node()}', end='', file=file, flush=True)
    return file


def save_checkpoint(path: str, state: Dict[str, Any]) -> None:
    """Write tensors and plain objects to a file; a missing folder is created. If this fails, for example because the
    disk is full, it raises ``CheckpointError``, and an existing file stays unchanged."""
    folder, beside = os.path.dirname(path), f'{path}.tmp'
    try:
        os.makedirs(folder, exist_ok=True)
        with open(beside, 'wb') as f:
            torch.save(state, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(beside, path)
        entries = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(entries)  # flushes the new name too
        finally:
            os.close(entries)
    except (OSError, RuntimeError) as error:  # torch's writer turns an OSError into a RuntimeError
        if os.path.exists(beside):
            os.remove(beside)
        before = numbered(folder)
        last = f'the last good one is {os.path.normpath(before[0])}' if before else 'there is no earlier checkpoint'
        raise CheckpointError(
            f'the checkpoint {os.path.normpath(path)} could not be written ({_reason(error)}); {last}'
        ) from error


def _reason(error: BaseException) -> str:
    while not isinstance(error, OSError) and error.__context__ is not None:
        error = error.__context__
    return getattr(error, 'strerror', None) or str(error).strip().splitlines()[0]


def read_checkpoint(path: str, mapped: bool = False, parts: bool = True) -> Dict[str, Any]:
    """Read a checkpoint without executing any code that it contains, whole also if processes have divided it. Raises
    ``CheckpointError`` if it is missing, damaged or compressed, or contains anything but tensors and plain objects.

    ``mapped``: tensors stay in the file, which must not change, until they are used: the optimizer's state, twice as
    large as the model, needs no memory then. Of a divided checkpoint only the model is read. ``parts``: whether to read
    the tensors of a divided checkpoint; they are checked in any case."""
    path = os.path.normpath(path)
    state = _read_file(path, mapped)
    check_content(state, _COMMON, f'the checkpoint {path}')
    if ENTRY in state:
        with taking(f'the checkpoint {path}'):
            check_shards(path, state)
        if parts:
            state = read_shards(path, state, only='model' if mapped else '')
    return state


def _read_file(path: str, mapped: bool) -> Any:
    if os.path.exists(path) and not os.path.isfile(path):
        raise CheckpointError(f'the checkpoint {path} is not a file')
    try:
        check_archive(path)
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f'the checksum of {damaged} does not match')
        return torch.load(path, map_location='cpu', weights_only=True, mmap=mapped)
    except FileNotFoundError as error:
        raise CheckpointError(f'there is no checkpoint {path}') from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f'the checkpoint {path} contains more than tensors and plain objects; none of its code was run'
        ) from error
    except Exception as error:  # damaged archives raise many kinds, from struct.error to pickle's
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f'the checkpoint {path} is damaged, or was not written by torch 1.6 or later ({reason})'
        ) from error


@contextmanager
def whole_folder(path: str) -> Iterator[str]:
    """A temporary folder to write into, which is renamed to ``path`` once everything is written."""
    beside, before = f'{path}.tmp', f'{path}.before'
    if os.path.exists(before) and not os.path.exists(path):  # killed between the two moves below
        os.replace(before, path)
    for left in (beside, before):
        shutil.rmtree(left, ignore_errors=True)
    try:
        yield beside
    except (OSError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise CheckpointError(f'the folder {os.path.normpath(path)} could not be written ({_reason(error)})') from error
    if os.path.exists(path):
        os.replace(path, before)
    os.replace(beside, path)
    shutil.rmtree(before, ignore_errors=True)


def numbered(folder: str) -> List[str]:
    """Paths of the numbered checkpoints in a folder, newest first."""
    found = [path for path in glob.glob(os.path.join(glob.escape(folder), '*')) if number_of(path) is not None]
    return sorted(found, key=number_of, reverse=True)


def number_of(path: str) -> Optional[int]:
    """The update number in a checkpoint's file name, None if the name has none."""
    match = _NUMBERED.fullmatch(os.path.basename(path))
    return None if match is None else int(match[1])


def prune(folder: str, keep: int) -> List[str]:
    """Delete all but the newest numbered checkpoints, whose paths it returns, and partial files that a kill left."""
    old = numbered(folder)[keep:]
    for path in old + glob.glob(os.path.join(glob.escape(folder), '*.tmp')):
        os.remove(path)
    prune_shards(folder)
    return old


def newest(folder: str, asked: str = '', parts: bool = True) -> Optional[Found]:
    """The checkpoint to resume from: the file ``asked``, or the newest in a folder; None if it contains none. A damaged
    checkpoint is skipped in favour of the previous one. Raises ``CheckpointError`` if every checkpoint is damaged."""
    candidates = numbered(os.path.dirname(asked) if asked else folder)
    if asked:
        below = number_of(asked) or 0  # a checkpoint without a number has no previous one
        candidates = [asked] + [path for path in candidates if path != asked and number_of(path) < below]
    elif os.path.isfile(os.path.join(folder, 'ckpt_best.pth.tar')):
        candidates.append(os.path.join(folder, 'ckpt_best.pth.tar'))
    for path in candidates:
        try:
            return Found(path, read_checkpoint(path, parts=parts))
        except CheckpointError as error:
            if path == candidates[-1]:
                raise CheckpointError(f'{error.message}, and there is no good earlier checkpoint') from error
            show(f'{error.message}; trying the previous one')
    return None
