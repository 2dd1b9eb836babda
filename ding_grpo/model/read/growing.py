"""Sampling with shared prompts: the attention of rows that grow by one token at a time."""
from itertools import accumulate
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from ding_grpo.rl_utils.on_device import on_device

from .attention import TOKEN, Options, Seen, attended, call_time, kept_type
from .bands import Band, Packed, divide
from .prompts import PromptTree
from .row_tree import RowTree
from .whole import Whole

ROOM = 16  # number of tokens per row that fit into a new cache; its size doubles when it is full


class Growing:
    """Reads the prompts first, in the order of ``prompts``, then tokens of the rows, without gradients. Keys and values
    of a common beginning and of a prompt are kept once, separately from those of the rows. Rows have read equally many
    own tokens until ``set_read`` is called."""

    def __init__(self, tree: PromptTree, hidden: int, fixed: bool = False) -> None:
        """``hidden``: size of the model's hidden states. ``fixed``: whether the operations of a step and the tensors
        that they use do not change until ``keep``, ``set_read``, or a ``full`` cache. A row then attends to all places
        of its cache, with a mask."""
        self._fixed = fixed
        self.prompts = _PromptPack.of(tree, hidden)
        self._packed: Dict[int, Tuple[Tensor, Tensor]] = {}  # by layer (K, N, D): keys and values not yet in grids
        self._grids: Dict[int, List[List[Tuple[Tensor, Tensor]]]] = {}  # by layer and level: (p, K, L, D) of each share
        self._own: Dict[int, Tuple[Tensor, Tensor]] = {}  # by layer (B, K, room, D)
        self._read = 0  # number of own tokens read of each row, of the longest if they differ
        self._count: Optional[Tensor] = None  # (B, ): the same of each row if they differ, or ``fixed``
        self._step: Dict[Any, Any] = {}  # what all layers share while they read the next tokens
        self._set(tree.common, tree.remaining, tree.beginning, tree.row.tolist(), tree.row.device)
        if fixed:
            self._count = torch.zeros_like(self._length)

    @property
    def full(self) -> bool:
        """Whether the cache of the rows has no place for another token, so that the next step makes room."""
        return all(self._read >= keys.shape[2] for keys, _ in self._own.values())

    def begin(self) -> Tensor:
        """Begin to read the next tokens. Returns the position of each line's first, (B, )."""
        self._step.clear()
        return self._length + (self._read if self._count is None else self._count)

    @property
    def read(self) -> Tensor:
        """Number of own tokens read of each line, (B, )."""
        return torch.full_like(self._length, self._read) if self._count is None else self._count

    def set_read(self, count: Tensor) -> None:
        """Set the number of own tokens (B, ) of which each line sees keys; those behind them are overwritten."""
        self._count, self._read = count.clone(), int(count.max())

    def _set(
            self, common: List[int], remaining: List[int], beginning: List[int], row: List[int], device: torch.device
    ) -> None:
        """The segments in ``_packed`` and the prompt of each line; see ``PromptTree``."""
        self._common, self._remaining, self._beginning, self._row = common, remaining, beginning, row
        skipped = [common[i] for i in beginning] if common else [0] * len(remaining)
        lengths = [skipped[i] + remaining[i] for i in row]
        self._length, self._longest = on_device(lengths, device), max(lengths)  # (B, )
        start = list(accumulate([*common, *remaining], initial=0))
        after = [remaining[i] for i in row]  # number of tokens between a line's beginning and its own tokens
        self._levels = []
        if common:
            self._levels.append(_Level.of([beginning[i] for i in row], common, start, after, device))
        self._levels.append(_Level.of(row, remaining, start[len(common):], [0] * len(row), device))

    def keep(self, lines: Tensor) -> None:
        """Continue with the lines of these indices only; layer by layer, without a second set of all keys."""
        device, kept = self._length.device, on_device(lines, self._length.device)
        for layer, own in self._own.items():
            self._own[layer] = tuple(x[kept] for x in own)
        self._count = None if self._count is None else self._count[kept]
        row, common, remaining, beginning = self._row, self._common, self._remaining, self._beginning
        if self._grids:  # repack the keys of all segments that lines continued, in their order
            bands = [segments for level in self._levels for segments, _ in level.shares]
            packed = Packed(bands)
            for layer in list(self._grids):
                of_bands = zip(bands, (grid for level in self._grids.pop(layer) for grid in level))
                parts = zip(*([band.take(x.transpose(1, 2)) for x in grid] for band, grid in of_bands))
                self._packed[layer] = tuple(packed.join(list(x)).transpose(0, 1) for x in parts)
            place = {prompt: i for i, prompt in enumerate(sorted(set(row)))}  # among those that lines continued
            used = {number: i for i, number in enumerate(sorted({beginning[prompt] for prompt in place}))}
            common = [common[number] for number in used] if common else []
            beginning = [used[beginning[prompt]] for prompt in place]
            remaining = [remaining[prompt] for prompt in place]
            row = [place[prompt] for prompt in row]
        self._set(common, remaining, beginning, [row[i] for i in lines.tolist()], device)

    def stepped(self) -> None:
        """Record that one token of each line has been read."""
        self._read += 1
        if self._count is not None:
            self._count.add_(1)  # in place, for ``fixed``

    @torch.no_grad()
    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: Options) -> Tensor:
        """Like ``Whole.attend``: of the prompts at the first call, then of T tokens per line, line by line."""
        given = v.dtype
        if layer not in self._packed and layer not in self._grids:
            self._packed[layer] = tuple(_alone(_kept(self.prompts.of_tree(x[0]))) for x in (k, v))
            return self.prompts.whole.attend(layer, q, k, v, options)
        if layer in self._packed:
            packed = self._packed.pop(layer)
            self._grids[layer] = [level.grids(*packed) for level in self._levels]
        lines, heads, size = len(self._length), q.shape[1], q.shape[3]
        groups, repeat, tokens = k.shape[1], heads // k.shape[1], q.shape[2] // lines
        k, v = self._append(layer, *(_kept(x[0]).unflatten(1, (lines, tokens)).transpose(0, 1) for x in (k, v)))
        options = options.within(self._longest + k.shape[2])  # k: (B, K, t, D)
        q = _kept(q[0]).reshape(groups, repeat, lines, tokens, size)
        q = q.permute(2, 0, 1, 3, 4).reshape(lines, groups, -1, size)
        seen, of_levels = self._seen(tokens, k.shape[2], repeat, options.window)
        out, lse = attended(q, k, v, seen, options)  # (B, K, rep T, E), (B, K, rep T)
        out = out.to(lse.dtype)
        for level, grids, above_seen in zip(self._levels, self._grids[layer], of_levels):
            above, above_lse = level.attend(q, grids, above_seen, options)
            lse = lse.reshape(above_lse.shape)
            share = torch.sigmoid(lse - above_lse).reshape(*out.shape[:3], 1)
            joint = out.new_empty(out.shape)  # in the order in which it leaves, for tokens that are read one by one
            out = torch.lerp(above.reshape(out.shape).to(lse.dtype), out, share, out=joint)
            if level is not self._levels[-1]:
                lse = torch.logaddexp(lse, above_lse)
        out = out.to(given).unflatten(2, (repeat, tokens))  # (B, K, rep, T, E)
        return out.permute(0, 3, 1, 2, 4).reshape(1, lines * tokens, heads, v.shape[-1])

    def _places(self, tokens: int) -> Tensor:
        """The place of each new token among the own tokens of its line, (1 or B, T)."""
        if 'places' not in self._step:
            step = torch.arange(tokens, device=self._length.device)
            self._step['places'] = (self._read if self._count is None else self._count.unsqueeze(1)) + step.unsqueeze(0)
        return self._step['places']

    def _seen(self, tokens: int, keys: int, repeat: int,
              window: Optional[int]) -> Tuple[Optional[Seen], List[List[Optional[Seen]]]]:
        """What new tokens see in all layers of a window: of the own keys, and of the segments in each level's grids."""
        key = (keys, repeat, window)
        if key not in self._step:
            own = None if window is None else self._places(tokens)
            of_levels = [level.seen(window, own, repeat) for level in self._levels]
            self._step[key] = self._seen_own(tokens, keys, repeat, window), of_levels
        return self._step[key]

    def _seen_own(self, tokens: int, keys: int, repeat: int, window: Optional[int]) -> Optional[Seen]:
        """Which own keys each new token sees, (1 or B, 1, 1 or rep T, t); None for all."""
        if self._count is None and tokens == 1 and window is None:
            return None
        own = self._places(tokens)
        key, place = torch.arange(keys, device=own.device), own.unsqueeze(-1)  # (t, ), (1 or B, T, 1)
        seen = key <= place if window is None else (key <= place) & (place - key < window)
        return Seen(seen[:, None] if own.shape[1] == 1 else seen.repeat(1, repeat, 1).unsqueeze(1))

    def _append(self, layer: int, k: Tensor, v: Tensor) -> Tuple[Tensor, Tensor]:
        """Keep keys and values of new tokens, (B, K, T, D) each. Returns those of all own tokens, (B, K, t, D)."""
        needed, room = self._read + k.shape[2], self._own[layer][0].shape[2] if layer in self._own else 0
        more = max(room, ROOM)
        while needed > more:
            more *= 2
        if room == 0:
            # zeros, because a masked key that is NaN or infinite would still make the result NaN
            self._own[layer] = tuple(x.new_zeros(*x.shape[:2], more, x.shape[3]) for x in (k, v))
        elif more > room:
            self._own[layer] = tuple(F.pad(x, (0, 0, 0, more - room)) for x in self._own[layer])
        for own, x in zip(self._own[layer], (k, v)):
            if self._count is None:
                own[:, :, self._read:needed] = x
            else:
                line = torch.arange(len(x), device=x.device).unsqueeze(1)
                own[line, :, self._places(x.shape[2])] = x.transpose(1, 2)
        return self._own[layer] if self._fixed else tuple(own[:, :, :needed] for own in self._own[layer])


class _Level(NamedTuple):
    """The segments that lines see above their own tokens: one of each line, a prompt's or a common beginning."""
    shares: List[Tuple[Band, Band]]  # segments of similar length, and the lines that see each of them
    packed: Packed  # of the lines
    after: Tensor  # (B, ): number of tokens between the segment of each line and the line's own tokens

    @classmethod
    def of(
            cls, number: List[int], lengths: List[int], start: List[int], after: List[int], device: torch.device
    ) -> '_Level':
        """``number``: the segment of each line. ``lengths``, ``start``: length of each segment, and its first token in
        the packed row."""
        # segments in the order of the first lines that see them: lines that are together need not be gathered
        used, first, count = np.unique(number, return_index=True, return_counts=True)
        order = np.argsort(first[np.searchsorted(used, number)], kind='stable')
        used, count = (x[first.argsort()].tolist() for x in (used, count))
        first, call = list(accumulate(count, initial=0)), call_time(device)
        sizes, shares = [(m, lengths[i]) for i, m in zip(used, count)], []
        for chosen in divide(sizes, lambda count, m, n: call + count * n * (m + TOKEN)):
            segments = Band([(start[used[i]], lengths[used[i]]) for i in chosen], device)
            shares.append((segments, Band([(first[i], count[i]) for i in chosen], device, order)))
        return cls(shares, Packed([lines for _, lines in shares]), on_device(after, device))

    def grids(self, k: Tensor, v: Tensor) -> List[Tuple[Tensor, Tensor]]:
        """Keys and values of the segments, (K, N, D) -> (p, K, L, D) for each share."""
        return [tuple(segments.place(x).transpose(0, 1) for x in (k, v)) for segments, _ in self.shares]

    def attend(self, q: Tensor, grids: List[Tuple[Tensor, Tensor]], seen: List[Optional[Seen]],
               options: Options) -> Tuple[Tensor, Tensor]:
        """Attention of the lines (B, K, rep T, D) to the segments: (B, K, rep T, E), and (B, K, rep T). If they are
        equally many for each segment, one after another, they stay in a grid, with (p, R) in place of B."""
        parts = []
        for (_, lines), (k, v), of_share in zip(self.shares, grids, seen):
            queries = lines.place(q.transpose(0, 1)).transpose(0, 1).flatten(2, 3)  # (p, K, R rep T, D)
            found = attended(queries, k, v, of_share, options)
            found = [x.unflatten(2, (-1, q.shape[2])).transpose(1, 2) for x in found]  # (p, R, K, rep T, *)
            if len(self.shares) == 1 and lines.whole:
                return tuple(found)
            parts.append([lines.take(x) for x in found])
        return tuple(self.packed.join(list(x)) for x in zip(*parts))

    def seen(self, window: Optional[int], own: Optional[Tensor], repeat: int) -> List[Optional[Seen]]:
        """The keys that tokens at the places ``own`` (1 or B, T), of which a window depends, see, (p, 1, 1 or R rep T,
        L) for each share; None for all."""
        if window is None:
            return [segments.filled for segments, _ in self.shares]
        after, found = (self.after.unsqueeze(1) + own).unsqueeze(0), []  # (1, B, T)
        for segments, lines in self.shares:
            at = lines.place(after)[0].repeat(1, 1, repeat).flatten(1)  # (p, R rep T)
            found.append(segments.within(window, segments.length.unsqueeze(1) + at))
        return found


class _PromptPack(NamedTuple):
    """The tokens of a ``PromptTree`` in the order in which they are read. What begins several prompts after their
    common beginning, such as the first number of a sum, is read once as well: they are rows that continue it."""
    ids: Tensor  # (M, ), the tokens
    position: Tensor  # (M, ), their positions in the prompts
    last: Tensor  # (P, ), place of each prompt's last token
    place: Optional[Tensor]  # (N, ), place of each token of the tree; None if these are the same tokens in order
    whole: Whole

    @classmethod
    def of(cls, tree: PromptTree, hidden: int) -> '_PromptPack':
        """``hidden`` is the size of the model's hidden states."""
        if not tree.common:
            return cls(tree.ids, tree.position, tree.last, None, Whole(tree))
        begin, device = sum(tree.common), tree.ids.device
        number, length = (on_device(x, device) for x in (tree.beginning, tree.remaining))
        common = PromptTree([], tree.common, [0] * len(tree.common), tree.ids[:begin], tree.position[:begin], number)
        rest = pad_sequence(tree.ids[begin:].split(tree.remaining), batch_first=True)  # (P, L)
        branches = RowTree.of(common, F.pad(rest, (0, 1)), length, hidden)
        inside = torch.arange(rest.shape[1], device=device) < length.unsqueeze(1)
        place = torch.cat([torch.arange(begin, device=device), begin + branches.place[:, 1:][inside]])
        return cls(
            torch.cat([common.ids, branches.ids]),
            torch.cat([common.position, branches.position]),
            place[tree.last],
            None if len(branches.ids) == len(tree.ids) - begin else place,
            Whole(common, branches),
        )

    def of_tree(self, x: Tensor) -> Tensor:
        """Keys or values of the tree's tokens (K, N, D), from those of the tokens read (K, M, D)."""
        return x if self.place is None else x[:, self.place]


def _kept(x: Tensor) -> Tensor:
    return x.to(kept_type(x.dtype, x.device))


def _alone(x: Tensor) -> Tensor:
    """Without the memory of a larger tensor of which it is a part, such as one with the queries."""
    return x.clone() if x.untyped_storage().nbytes() > x.nbytes else x
