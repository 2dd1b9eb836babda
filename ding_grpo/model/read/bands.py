"""
Segments of a packed row of tokens, arranged in a grid for operations that need one. Segments of similar length share a
grid (a band), so that one long segment does not force the others to its length.
"""
from functools import cached_property
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from ding_grpo.rl_utils.on_device import on_device

from .attention import Seen

SIZES = 48  # number of sizes that ``divide`` distinguishes; with more, neighbouring sizes count as equal


class Band:
    """Segments of the packed row in a grid, padded on the right. A padded cell repeats the first token of its segment,
    so that no cell is NaN or infinite."""

    def __init__(
            self,
            segments: Sequence[Tuple[int, int]],
            device: torch.device,
            order: Optional[np.ndarray] = None
    ) -> None:
        """``segments`` are pairs of start and length, which is at least 1. They may be those of tokens in another
        ``order`` than in the packed row."""
        start, length = np.array(segments, dtype=np.int64).T
        self.shape = (len(segments), int(length.max()))
        before, tokens = length.cumsum() - length, int(length.sum())
        self.even = bool((length == self.shape[1]).all())
        cell = np.arange(len(segments)) * self.shape[1]
        # (tokens, ), in the order of ``take``: the place in the packed row, and the cell
        self.places, cells = (np.arange(tokens) + np.repeat(x - before, length) for x in (start, cell))
        index = np.repeat(start, self.shape[1])
        index[cells] = self.places
        if order is not None:
            self.places, index = order[self.places], order[index]
        begin = int(self.places[0])
        self._slice = slice(begin, begin + tokens)
        self.whole = self.even and bool((self.places == begin + np.arange(tokens)).all())
        found = _to(device, self.places, cells, index, length, *np.divmod(cells, self.shape[1]))
        self.tokens, self._cell, self._index, self.length, *at = found
        self._at = tuple(at)

    @cached_property
    def filled(self) -> Optional[Seen]:
        """Which cells have a token, (n, 1, 1, columns); None for all."""
        if self.even:
            return None
        column = torch.arange(self.shape[1], device=self.length.device)
        return Seen(column < self.length.view(-1, 1, 1, 1))

    def within(self, window: int, at: Tensor) -> Seen:
        """Which cells have a token that is less than ``window`` tokens before the places ``at`` (n, M), counted from
        the start of each segment, (n, 1, M, columns)."""
        near = (at.unsqueeze(-1) - torch.arange(self.shape[1], device=at.device) < window).unsqueeze(1)
        return Seen(near if self.filled is None else near & self.filled.keys)

    def place(self, x: Tensor) -> Tensor:
        """Put tokens into the grid, (H, N, *) -> (H, n, columns, *)."""
        x = x[:, self._slice] if self.whole else _select(x, 1, self._index, self._cell, self.tokens)
        return x.unflatten(1, self.shape)

    def place_filled(self, x: Tensor, value: float = 0.) -> Tensor:
        """Like ``place``, but with this value in padded cells and without a gradient."""
        if self.even:
            return self.place(x)
        grid = x.new_full((len(x), self.shape[0] * self.shape[1], *x.shape[2:]), value)
        return grid.index_copy_(1, self._cell, x[:, self.tokens]).unflatten(1, self.shape)

    def take(self, x: Tensor) -> Tensor:
        """Take tokens out of the grid, without the padded cells, (n, columns, *) -> (tokens, *)."""
        if self.even:
            return x.flatten(0, 1)
        return _select(x.flatten(0, 1), 0, self._cell) if torch.is_grad_enabled() else x[self._at]  # without a copy


class Packed:
    """Puts the tokens of several bands, which contain no token twice, back into the order of the packed row."""

    def __init__(self, bands: Sequence[Band]) -> None:
        tokens = np.concatenate([band.places for band in bands])
        self._index: Optional[Tensor] = None  # None if the bands have them in this order
        if not (tokens[1:] > tokens[:-1]).all():
            self._index = on_device(tokens.argsort(kind='stable'), bands[0].tokens.device)

    def join(self, parts: List[Tensor]) -> Tensor:
        """The tokens of all bands, in the order of the packed row, from the results (tokens, *) of ``Band.take``."""
        x = parts[0] if len(parts) == 1 else torch.cat(parts)
        return x if self._index is None else _select(x, 0, self._index)


def _to(device: torch.device, *arrays: np.ndarray) -> Tuple[Tensor, ...]:
    """Arrays on a device, by one copy."""
    together = on_device(np.concatenate(arrays), device)
    return together.split([len(x) for x in arrays])


def _select(x: Tensor, dim: int, index: Tensor, *copies: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        return _Select.apply(x, dim, index, *copies)
    return x.index_select(dim, index) if dim else x[index]  # in the layout of x, on which rounding depends


class _Select(torch.autograd.Function):
    """Select entries along a dimension. At most one copy of an entry counts, and the entry's gradient is that copy's.
    ``copies``: places in the result of the copies that count, and the entries that they are of; empty if all count."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, index: Tensor, *copies: Tensor) -> Tensor:
        ctx.save_for_backward(*(copies or (index, )))
        ctx.dim, ctx.shape = dim, x.shape
        return x.index_select(dim, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        *counts, entries = ctx.saved_tensors
        given = grad.index_select(ctx.dim, counts[0]) if counts else grad
        of_x = grad.new_zeros(ctx.shape).index_copy_(ctx.dim, entries, given)
        return of_x, *[None] * (len(ctx.needs_input_grad) - 1)


def divide(sizes: Sequence[Tuple[int, ...]], cost: Callable[..., float]) -> List[List[int]]:
    """Divide items of several sizes into bands of the least total cost: the indices of each band's items, ascending. A
    size is one or more numbers. Each item of a band costs as much as the largest. ``cost`` is a function of a band's
    number of items and of the largest value of each number of their sizes."""
    places: Dict[Tuple[int, ...], List[int]] = {}
    for i, size in enumerate(sizes):
        places.setdefault(tuple(size), []).append(i)
    if len(places) > SIZES:  # round sizes up to multiples of a fraction of the largest
        columns = list(zip(*places))
        step = [max(1, -(-max(x) // (SIZES // len(columns)))) for x in columns]
        coarse: Dict[Tuple[int, ...], List[int]] = {}
        for size, found in places.items():
            coarse.setdefault(tuple(-(-x // s) * s for x, s in zip(size, step)), []).extend(found)
        places = coarse
    order = sorted(places, reverse=True)
    best: List[Tuple[float, int]] = [(0., 0)]  # for the first j sizes: the least cost and the start of its last band
    for end in range(1, len(order) + 1):
        largest, count = order[end - 1], 0
        choices = []
        for begin in range(end - 1, -1, -1):
            largest = tuple(map(max, largest, order[begin]))
            count += len(places[order[begin]])
            choices.append((best[begin][0] + cost(count, *largest), begin))
        best.append(min(choices))
    bands, end = [], len(order)
    while end > 0:
        begin = best[end][1]
        bands.append(sorted(i for size in order[begin:end] for i in places[size]))
        end = begin
    return bands[::-1]
