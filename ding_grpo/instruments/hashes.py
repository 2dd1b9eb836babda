"""
Hashes of tensors that are cheap enough for every update. They are sums of bit patterns as integers, and CRC-32s of
them: the number of threads, the device and the order of a sum do not change them. They find differences, and do not
protect against forgery.
"""
import base64
import zlib
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import torch
from torch import Tensor

COLUMNS = 1000  # of eight bytes, over which the bit patterns of a large tensor are summed: 30 GB/s on one core
LARGE = 2 ** 14  # bytes from which a tensor is large; a CRC-32 of all bytes is three times as slow there
SAMPLE = 2 ** 12  # first elements of a tensor, which are summed: float64 sums of all would take four times as long
Digest = Tuple[str, float, float]  # hash of a tensor, and of its sample the sum and the sum of absolute values


def digests(tensors: List[Tensor]) -> List[Digest]:
    """A single changed bit always changes the hash of its tensor. Changes of several rows of ``COLUMNS`` that cancel do
    not."""
    return digests_of(on_host(digest_parts(tensors)))


def digest_parts(tensors: List[Tensor], most: Optional[int] = None) -> List[Tensor]:
    """What ``digests_of`` reads of each tensor, or of its first ``most`` elements, computed where the tensors are."""
    parts = []
    for x in (x.detach().contiguous().flatten()[:most] for x in tensors):
        sample = x[:SAMPLE].double()
        parts += [*_hashed(x), torch.stack([sample.sum(), sample.abs().sum()])]
    return parts


def digests_of(parts: List[np.ndarray]) -> List[Digest]:
    pairs = zip(parts[::3], parts[1::3], parts[2::3])
    return [(f'{zlib.crc32(rest, zlib.crc32(columns)):08x}', *map(_short, sums)) for columns, rest, sums in pairs]


def _hashed(x: Tensor) -> Tuple[Tensor, Tensor]:
    """What a hash is made of: the sums of the columns of a large tensor, and what makes no whole row of them."""
    of_row = COLUMNS * 8 // x.element_size()
    whole = x.numel() // of_row * of_row if x.numel() * x.element_size() >= LARGE else 0
    if whole == 0:
        return x[:0], x
    aligned = x if x.storage_offset() * x.element_size() % 8 == 0 else x.clone()
    return aligned[:whole].view(torch.int64).view(-1, COLUMNS).sum(0), aligned[whole:]


def on_host(parts: List[Tensor]) -> List[np.ndarray]:
    """On the processor, from a GPU in one copy; as numbers where numpy knows them, else as bytes."""
    parts = [part.contiguous() for part in parts]
    away = [i for i, part in enumerate(parts) if part.device.type != 'cpu']
    if away:
        found = torch.cat([parts[i].flatten().view(torch.uint8) for i in away]).cpu()
        sizes = [parts[i].numel() * parts[i].element_size() for i in away]
        for i, part in zip(away, found.split(sizes)):
            parts[i] = part.clone().view(parts[i].dtype).view(parts[i].shape)  # aligned for the type
    known = (torch.int64, torch.float32, torch.float64)
    return [(part if part.dtype in known else part.view(torch.uint8)).numpy() for part in parts]


def of_rows(rows: np.ndarray, lengths: List[int]) -> Dict[str, str]:
    """Of each of the rows (B, S) or (B, ), without what follows its end: ``hash``, and ``sum`` in float64; as text."""
    if rows.ndim == 1:
        return dict(hash=coded(rows.view(np.uint32)), sum=coded(rows.astype(np.float64)))
    kept = np.arange(rows.shape[1]) < np.array(lengths)[:, None]
    hashes = np.array([zlib.crc32(row[:n]) for row, n in zip(rows, lengths)], np.uint32)
    return dict(hash=coded(hashes), sum=coded(np.where(kept, rows, 0).sum(1, dtype=np.float64)))


def coded(numbers: np.ndarray) -> str:
    """An array as text, which JSON writes ten times as fast as its numbers; integers in as few bytes as they need."""
    if numbers.dtype.kind == 'i':
        low, high = np.min_scalar_type(numbers.min(initial=0)), np.min_scalar_type(numbers.max(initial=0))
        numbers = numbers.astype(np.promote_types(low, high))
    shape = ','.join(map(str, numbers.shape))
    return f'{numbers.dtype.str} {shape} {base64.b64encode(np.ascontiguousarray(numbers)).decode()}'


def decoded(text: str) -> List[Any]:
    kind, shape, numbers = text.split(' ')
    array = np.frombuffer(base64.b64decode(numbers), np.dtype(kind))
    return array.reshape([int(n) for n in shape.split(',')]).tolist()


def _short(number: float) -> float:
    """In twelve digits, more than float32 has."""
    return float(f'{number:.12g}')
