"""Sampling with shared prompts: the attention of rows that grow by one token at a time."""
from itertools import accumulate
from typing import Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .bands import Band, Packed, divide
from .shared_attention import CALL, TOKEN, Options, attended
from .shared_whole import Whole

ROOM = 16  # number of tokens per row that fit into a new cache; its size doubles when it is full


class Growing:
    """
    Overview:
        Reads the prompts first, then one token of each row at a time, without gradients. Keys and values of a prompt \
        are kept once, separately from those of the rows.
    """

    def __init__(self, prompt_length: Tensor, row: Tensor) -> None:
        """
        Arguments:
            - prompt_length (:obj:`torch.LongTensor`): :math:`(P, )`, number of tokens of each prompt.
            - row (:obj:`torch.LongTensor`): :math:`(B, )`, the prompt that each row continues.
        """
        self._begin = Whole(prompt_length, row[:0], row[:0])
        self._prompt_length = prompt_length.tolist()
        self._packed: Dict[int, Tuple[Tensor, Tensor]] = {}  # by layer (K, N, D): keys and values not yet in grids
        self._grids: Dict[int, List[Tuple[Tensor, Tensor]]] = {}  # by layer: (p, K, L, D) of each share
        self._own: Dict[int, Tuple[Tensor, Tensor]] = {}  # by layer (B, K, room, D)
        self._read = 0  # number of tokens read of each row
        self._set(row)

    @property
    def position(self) -> Tensor:
        """Position of each line's next token, (B, )."""
        return self._length + self._read

    def _set(self, row: Tensor) -> None:
        self._row, device = row, row.device
        lines: Dict[int, List[int]] = {}
        for line, prompt in enumerate(row.tolist()):
            lines.setdefault(prompt, []).append(line)
        self._length = torch.tensor(self._prompt_length, device=device)[row]  # (B, )
        used, start = sorted(lines), list(accumulate(self._prompt_length, initial=0))
        sizes = [(len(lines[prompt]), self._prompt_length[prompt]) for prompt in used]
        self._shares = [
            _Share.of([used[i] for i in chosen], lines, start, device)
            for chosen in divide(sizes, lambda count, m, n: CALL + count * n * (m + TOKEN))
        ]
        order = torch.cat([share.line[share.cell] for share in self._shares])
        self._back = None if bool((order.diff() > 0).all()) else order.argsort()

    def keep(self, lines: Tensor) -> None:
        """
        Overview:
            Continue with the given lines only.
        Arguments:
            - lines (:obj:`torch.LongTensor`): Indices of the lines.
        """
        self._own = {layer: tuple(x[lines] for x in own) for layer, own in self._own.items()}
        row = self._row[lines]
        if self._grids:  # repack the keys of all prompts that lines continued, in their order
            bands = [share.band for share in self._shares]
            packed, before = Packed(bands), self._row.unique()
            for layer, grids in self._grids.items():
                parts = zip(*([band.take(x.transpose(1, 2)) for x in grid] for band, grid in zip(bands, grids)))
                self._packed[layer] = tuple(packed.join(list(x)).transpose(0, 1) for x in parts)
            self._grids.clear()
            self._prompt_length = [self._prompt_length[prompt] for prompt in before.tolist()]
            row = torch.searchsorted(before, row)
        self._set(row)

    def stepped(self) -> None:
        """Record that one token of each line has been read."""
        self._read += 1

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: Options) -> Tensor:
        """Like ``Whole.attend``: of the prompts at the first call, then of one token per line."""
        if layer not in self._packed and layer not in self._grids:
            self._packed[layer] = (k[0], v[0])
            return self._begin.attend(layer, q, k, v, options)
        if layer in self._packed:
            packed = self._packed.pop(layer)
            self._grids[layer] = [share.grid(*packed) for share in self._shares]
        k, v = self._append(layer, k[0].transpose(0, 1), v[0].transpose(0, 1))  # (B, K, t + 1, D)
        heads, lines, size = q.shape[1:]
        groups, repeat = k.shape[1], heads // k.shape[1]
        options = options.within(max(self._prompt_length) + self._read + 1)
        q = q[0].transpose(0, 1).reshape(lines, groups, repeat, size)  # (B, K, rep, D)
        parts = []
        for share, (kp, vp) in zip(self._shares, self._grids[layer]):
            found = attended(share.queries(q), kp, vp, share.seen(options.window, self._read), options)
            parts.append([share.lines(x, repeat) for x in found])
        out, lse = (torch.cat(x) if len(x) > 1 else x[0] for x in zip(*parts))  # (B, K, rep, E), (B, K, rep)
        if self._back is not None:
            out, lse = out[self._back], lse[self._back]
        seen = None
        if options.window is not None:
            seen = torch.arange(self._read, -1, -1, device=q.device) < options.window
        own, own_lse = attended(q, k, v, seen, options)
        out = torch.lerp(out.to(lse.dtype), own.to(lse.dtype), torch.sigmoid(own_lse - lse).unsqueeze(-1))
        return out.to(v.dtype).reshape(1, lines, heads, v.shape[-1])

    def _append(self, layer: int, k: Tensor, v: Tensor) -> Tuple[Tensor, Tensor]:
        room = self._own[layer][0].shape[2] if layer in self._own else 0
        if room == 0:
            self._own[layer] = tuple(x.new_empty(*x.shape[:2], ROOM, x.shape[2]) for x in (k, v))
        elif self._read == room:
            self._own[layer] = tuple(F.pad(x, (0, 0, 0, room)) for x in self._own[layer])
        for own, x in zip(self._own[layer], (k, v)):
            own[:, :, self._read:self._read + 1] = x.unsqueeze(2)
        return tuple(own[:, :, :self._read + 1] for own in self._own[layer])


class _Share(NamedTuple):
    """Prompts of ``Growing`` of similar length, and the lines that continue them, R places for each prompt."""
    band: Band
    rows: int  # R
    line: Tensor  # (p R, ): the line in each place; an arbitrary line in an empty place
    cell: Tensor  # (lines, ): places with a line
    even: bool  # whether no place is empty
    sorted: bool  # whether these are the first lines, in their order

    @classmethod
    def of(cls, prompts: List[int], lines: Dict[int, List[int]], start: List[int], device: torch.device) -> '_Share':
        band = Band([(start[p], start[p + 1] - start[p]) for p in prompts], device)
        rows = max(len(lines[p]) for p in prompts)
        line = [lines[p] + lines[p][:1] * (rows - len(lines[p])) for p in prompts]
        cell = [i * rows + j for i, p in enumerate(prompts) for j in range(len(lines[p]))]
        flat = sum(line, [])
        return cls(
            band, rows, torch.tensor(flat, device=device), torch.tensor(cell, device=device),
            len(cell) == len(flat), flat == list(range(len(flat)))
        )

    def grid(self, k: Tensor, v: Tensor) -> Tuple[Tensor, Tensor]:
        """Keys and values of the prompts, (K, N, D) -> (p, K, L, D)."""
        return tuple(self.band.place(x).transpose(0, 1) for x in (k, v))

    def queries(self, q: Tensor) -> Tensor:
        """(B, K, rep, D) -> (p, K, R rep, D)."""
        q = q[:len(self.line)] if self.sorted else q[self.line]
        return q.unflatten(0, (-1, self.rows)).transpose(1, 2).flatten(2, 3)

    def lines(self, x: Tensor, repeat: int) -> Tensor:
        """(p, K, R rep, *) -> (lines, K, rep, *)."""
        x = x.unflatten(2, (self.rows, repeat)).transpose(1, 2).flatten(0, 1)
        return x if self.even else x[self.cell]

    def seen(self, window: Optional[int], read: int) -> Optional[Tensor]:
        """The keys that lines see after ``read`` tokens, (p, 1, 1, L); None for all."""
        if self.band.even and window is None:
            return None
        length = self.band.length.view(-1, 1, 1, 1)
        key = torch.arange(self.band.shape[1], device=length.device)
        return key < length if window is None else (key < length) & (length + read - key < window)
