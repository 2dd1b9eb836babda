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
LARGE = 2 ** 16  # bytes from which a tensor is large; a CRC-32 of all bytes is three times as slow there
SAMPLE = 2 ** 12  # first elements of a tensor, which are summed: float64 sums of all would take four times as long
Digest = Tuple[str, float, float]  # hash of a tensor, and of its sample the sum and the sum of absolute values


def tensor_hash(x: Tensor) -> str:
    """A single changed bit always changes it. Changes of several rows of ``COLUMNS`` that cancel do not."""
    x = x.detach().contiguous().flatten()
    of_row = COLUMNS * 8 // x.element_size()
    whole = x.numel() // of_row * of_row if x.numel() * x.element_size() >= LARGE else 0
    value = 0
    if whole > 0:
        aligned = x if x.storage_offset() * x.element_size() % 8 == 0 else x.clone()
        value = zlib.crc32(aligned[:whole].view(torch.int64).view(-1, COLUMNS).sum(0).cpu().numpy())
    return f'{zlib.crc32(x[whole:].view(torch.uint8).cpu().numpy(), value):08x}'


def digest(x: Tensor, most: Optional[int] = None) -> Digest:
    """Of a tensor, or of its first ``most`` elements."""
    x = x.detach().contiguous().flatten()[:most]
    first = x[:SAMPLE]
    numbers = (first if first.dtype is torch.float32 else first.double()).cpu().numpy()
    return tensor_hash(x), _short(numbers.sum(dtype=np.float64)), _short(np.abs(numbers).sum(dtype=np.float64))


def of_rows(x: Tensor, lengths: List[int]) -> Dict[str, str]:
    """Of each row of x (B, S) or (B, ), without what follows its end: ``hash``, and ``sum`` in float64; as text."""
    rows = x.detach().cpu().contiguous().numpy()
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
