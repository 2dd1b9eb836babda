"""
Segments of a packed row of tokens, laid side by side where an operation needs a grid. Segments of similar length share
a grid (a band), so that one long segment does not make all the others as long.
"""
from itertools import accumulate
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch
from torch import Tensor

SIZES = 48  # different sizes that ``divide`` tells apart; beyond them neighbours count as equal


class Band:
    """
    Overview:
        Segments of the packed row in a grid, padded on the right. A padded cell repeats the first token of its \
        segment, so that every cell is finite.
    """

    def __init__(self, segments: Sequence[Tuple[int, int]], device: torch.device) -> None:
        """
        Overview:
            Lay the segments out.
        Arguments:
            - segments (:obj:`Sequence[Tuple[int, int]]`): Start and length of each, length at least 1.
            - device (:obj:`torch.device`): Where the tokens are.
        """
        start, length = (torch.tensor(x, device=device) for x in zip(*segments))
        self.shape = (len(segments), max(n for _, n in segments))
        self.length = length
        self.even = all(n == self.shape[1] for _, n in segments)
        begin, tokens = segments[0][0], sum(n for _, n in segments)
        ends = [begin, *accumulate((n for _, n in segments), initial=begin)][1:]
        self._slice = slice(begin, begin + tokens)
        self._whole = self.even and all(s == e for (s, _), e in zip(segments, ends))
        step = torch.arange(self.shape[1], device=device)
        inside = step < length.unsqueeze(1)  # (n, columns)
        index = start.unsqueeze(1) + torch.where(inside, step, 0)
        self.tokens = index[inside]  # (tokens, ), in the order of ``take``
        self._index, self._cell = index.flatten(), inside.flatten().nonzero().squeeze(1)

    def place(self, x: Tensor) -> Tensor:
        """
        Overview:
            Tokens into the grid.
        Shapes:
            - x (:obj:`torch.Tensor`): :math:`(H, N, *)`, then :math:`(H, n, columns, *)`
        """
        x = x[:, self._slice] if self._whole else _Move.apply(x, self._index, self._cell, self.tokens)
        return x.unflatten(1, self.shape)

    def place_gradient(self, x: Tensor) -> Tensor:
        """As ``place``, with 0 in padded cells and without a gradient."""
        if self.even:
            return self.place(x)
        grid = x.new_zeros(len(x), self.shape[0] * self.shape[1], *x.shape[2:])
        return grid.index_copy_(1, self._cell, x[:, self.tokens]).unflatten(1, self.shape)

    def take(self, x: Tensor) -> Tensor:
        """
        Overview:
            Out of the grid again, without the padded cells.
        Shapes:
            - x (:obj:`torch.Tensor`): :math:`(n, columns, *)`, then :math:`(tokens, *)`
        """
        x = x.flatten(0, 1)
        return x if self.even else _Leave.apply(x, self._cell)


class Packed:
    """
    Overview:
        Puts the tokens of several bands back into the order of the packed row.
    """

    def __init__(self, bands: Sequence[Band], first: int = 0) -> None:
        """
        Overview:
            Find the order.
        Arguments:
            - bands (:obj:`Sequence[Band]`): Together they have each token from ``first`` on once.
            - first (:obj:`int`): First token of the packed row that is in a band.
        """
        tokens = torch.cat([band.tokens for band in bands]) - first
        self._back = tokens
        self._index = tokens.argsort()
        self._sorted = bool((tokens[1:] > tokens[:-1]).all())

    def join(self, parts: List[Tensor]) -> Tensor:
        """
        Overview:
            The tokens in their order.
        Arguments:
            - parts (:obj:`List[torch.Tensor]`): From ``Band.take``, one a band, :math:`(tokens, *)` each.
        """
        x = parts[0] if len(parts) == 1 else torch.cat(parts)
        return x if self._sorted else _Permute.apply(x, self._index, self._back)


class _Move(torch.autograd.Function):
    """Tokens to cells. A token has one cell that counts, so that its gradient is the gradient of that cell."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, cell: Tensor, tokens: Tensor) -> Tensor:
        ctx.save_for_backward(cell, tokens)
        ctx.shape = x.shape
        return x.index_select(1, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple:
        cell, tokens = ctx.saved_tensors
        return grad.new_zeros(ctx.shape).index_copy_(1, tokens, grad.index_select(1, cell)), None, None, None


class _Leave(torch.autograd.Function):
    """Cells to tokens. Padded cells get the gradient 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cell: Tensor) -> Tensor:
        ctx.save_for_backward(cell)
        ctx.shape = x.shape
        return x.index_select(0, cell)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple:
        return grad.new_zeros(ctx.shape).index_copy_(0, ctx.saved_tensors[0], grad), None


class _Permute(torch.autograd.Function):

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple:
        return grad.index_select(0, ctx.saved_tensors[0]), None, None


def divide(sizes: Sequence[Tuple[int, ...]], cost: Callable[..., float]) -> List[List[int]]:
    """
    Overview:
        Divide things of several sizes into bands of the least total cost, where each thing of a band costs as much as \
        the largest.
    Arguments:
        - sizes (:obj:`Sequence[Tuple[int, ...]]`): One or more numbers of each thing.
        - cost (:obj:`Callable`): Cost of a band by how many things it has and the largest of each number.
    Returns:
        - bands (:obj:`List[List[int]]`): Indices of the things, ascending within a band.
    """
    places: Dict[Tuple[int, ...], List[int]] = {}
    for i, size in enumerate(sizes):
        places.setdefault(tuple(size), []).append(i)
    if len(places) > SIZES:  # in steps of a part of the largest
        columns = list(zip(*places))
        step = [max(1, -(-max(x) // (SIZES // len(columns)))) for x in columns]
        coarse: Dict[Tuple[int, ...], List[int]] = {}
        for size, found in places.items():
            coarse.setdefault(tuple(-(-x // s) * s for x, s in zip(size, step)), []).extend(found)
        places = coarse
    order = sorted(places, reverse=True)
    best: List[Tuple[float, int]] = [(0., 0)]  # of the first j sizes: the least cost, and where its last band begins
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
