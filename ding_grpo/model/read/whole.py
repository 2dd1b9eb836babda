"""Learning with shared prompts: the differentiable attention of prompts and completions that are read together."""
import math
from itertools import accumulate
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from ding_grpo.rl_utils.check import widened
from ding_grpo.rl_utils.on_device import on_device

from .attention import TOKEN, Options, Seen, added, attended, call_time, flash, flash_backward, is_fast, plain
from .bands import Band, Packed, divide
from .prompts import PromptTree
from .row_tree import RowTree

# Number of query-key pairs that take as long as what a part of the attention needs besides its pairs. A packed row that
# is short is attended in one part with a mask, if all pairs of its tokens take less time than its parts.
PART = 16384
FIRST = 64  # the least number of tokens for which the first row of a branch is attended by itself

_Segment = Tuple[Tuple[int, int], Optional[np.ndarray]]  # start and length; which of its tokens each one sees


class _Own(NamedTuple):
    """Segments in a grid, and what their tokens see of them."""
    band: Band
    seen: Optional[Seen]  # (n, 1, T, T): which tokens each token sees; None for those before it
    # Number of tokens at the start that see all before them, as those of the first row of a branch do. They are
    # attended without a mask, which halves their pairs. 0: all tokens together.
    first: int = 0
    rest: Optional[Seen] = None  # (n, 1, T - first, T): what the tokens after these see

    @classmethod
    def of(cls, segments: List[_Segment], device: torch.device) -> List['_Own']:
        """Grids of all segments."""
        causal, call = [segment for segment, seen in segments if seen is None], call_time(device)
        divided = divide([(n, ) for _, n in causal], lambda count, n: call + count * n * (n / 2 + TOKEN))
        own = [cls(Band([causal[i] for i in chosen], device), None) for chosen in divided]
        branching = [x for x in segments if x[1] is not None]
        divided = divide([(n, ) for (_, n), _ in branching], lambda count, n: call + count * n * (n + TOKEN))
        for chosen in divided:
            found, masks = zip(*(branching[i] for i in chosen))
            longest = max(n for _, n in found)
            seen = np.tile(np.eye(longest, dtype=bool), (len(found), 1, 1))  # a padded cell sees itself
            for i, mask in enumerate(masks):
                seen[i, :len(mask), :len(mask)] = mask
            keys, first = on_device(seen, device).unsqueeze(1), _first(masks, call)
            own.append(cls(Band(list(found), device), Seen(keys), first, Seen(keys[:, :, first:]) if first else None))
        return own

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> List[Tensor]:
        """Flash attention to the segments: q, k, v (n, H, T, *) -> (n, H, T, E), and normalisers (n, H, T)."""
        if self.first == 0:
            return list(flash(q, k, v, scale, added(self.seen, q), causal=self.seen is None))
        first, rest = slice(self.first), slice(self.first, None)
        of_first = flash(q[:, :, first], k[:, :, first], v[:, :, first], scale, causal=True)
        of_rest = flash(q[:, :, rest], k, v, scale, added(self.rest, q))
        return [torch.cat(x, dim=2) for x in zip(of_first, of_rest)]

    def backward(self, grad: Tensor, x: Tuple[Tensor, ...], out: Tensor, lse: Tensor, scale: float) -> List[Tensor]:
        """The gradients of ``attend`` with respect to ``x``, which are q, k and v, see ``flash_backward``."""
        if self.first == 0:
            return list(flash_backward(grad, *x, out, lse, scale, added(self.seen, x[0]), causal=self.seen is None))
        (q, k, v), first, rest = x, slice(self.first), slice(self.first, None)
        of_first, of_rest = ([y[:, :, part].contiguous() for y in (grad, q, out, lse)] for part in (first, rest))
        g, q, o, m = of_first
        dq, dk_first, dv_first = flash_backward(g, q, k[:, :, first], v[:, :, first], o, m, scale, causal=True)
        g, q, o, m = of_rest
        dq_rest, dk, dv = flash_backward(g, q, k, v, o, m, scale, added(self.rest, q))
        dk[:, :, first] += dk_first
        dv[:, :, first] += dv_first
        return [torch.cat([dq, dq_rest], dim=2), dk, dv]


def _first(masks: Sequence[np.ndarray], call: int) -> int:
    """The number of tokens at the start of all segments that see all before them, if a call of their own pays."""
    first = min(int((mask.sum(1) == np.arange(1, len(mask) + 1)).cumprod().sum()) for mask in masks)
    after = max(map(len, masks)) - first
    saved = len(masks) * (first * after + first ** 2 / 2)  # pairs
    return first if first >= FIRST and after > 0 and saved > call else 0


class _Above(NamedTuple):
    """Tokens that follow each other in the packed row, and what they see above their own segments: their prompts, or
    the common beginnings of their prompts. No two bands contain the same segment above."""
    tokens: slice
    bands: List[Tuple[Band, Band]]  # tokens that see one segment, and this segment
    packed: Packed
    offset: List[Tensor]  # (p, ) for each of the bands: position of the first token of each segment above

    @classmethod
    def of(
            cls, below: List[Tuple[int, int]], above: List[Tuple[int, int]], offset: List[int], device: torch.device
    ) -> '_Above':
        """Tokens that see one segment, as (start, length) in ascending order; the segments; their positions."""
        seeing = [i for i, (_, n) in enumerate(below) if n > 0]
        sizes, call = [(below[i][1], above[i][1]) for i in seeing], call_time(device)
        divided = divide(sizes, lambda count, m, n: call + count * (m * (n + TOKEN) + n * TOKEN))
        chosen = [[seeing[i] for i in band] for band in divided]
        bands = [tuple(Band([x[i] for i in band], device) for x in (below, above)) for band in chosen]
        offsets = [on_device([offset[i] for i in band], device) for band in chosen]
        first, end = below[0][0], sum(below[-1])
        return cls(slice(first, end), bands, Packed([band for band, _ in bands]), offsets)

    def join(self, parts: List[Tuple[Tensor, Tensor]], out: Tensor, lse: Tensor) -> Tuple[Tensor, Tensor]:
        """Join the attention of ``tokens`` to the segments above, results and normalisers for each of the bands, with
        that of the whole packed row so far, ``out`` (N, H, E) and ``lse`` (N, H)."""
        of_above, above_lse = (self.packed.join(list(x)) for x in zip(*parts))
        out, lse = out[self.tokens], lse[self.tokens]
        share = torch.sigmoid(lse - above_lse).unsqueeze(-1)
        joint = torch.lerp(of_above.to(share.dtype), out.to(share.dtype), share).to(out.dtype)
        return joint, torch.logaddexp(lse, above_lse)


class Whole:
    """Differentiable attention of prompts and completions that are read together. ``branches`` are the rows that
    continue the prompts; None for the prompts alone. ``part``: number of query-key pairs that take as long as one more
    part."""

    def __init__(self, tree: PromptTree, branches: Optional[RowTree] = None, part: int = PART) -> None:
        device, of_prompts, of_each = tree.ids.device, tree.length, [0] * len(tree.remaining)
        segments = tree.segments
        begin = sum(segments[-1])  # number of tokens of all prompts
        own: List[_Segment] = [(segment, None) for segment in segments]
        self._position, self._longest = tree.position, max(of_prompts)  # positions of all tokens, for windows
        if branches is not None:
            for prompt, n in zip(branches.prompt, branches.length):
                of_each[prompt] += n
            starts = accumulate(branches.length, initial=begin)
            own += zip(zip(starts, branches.length), branches.seen)
            self._position = torch.cat([tree.position, branches.position])
            self._longest = max(self._longest, branches.end)
        self.own = _Own.of(own, device)
        self._seen: Dict[Tuple, Seen] = {}
        self.packed = Packed([x.band for x in self.own])
        commons, prompts = segments[:len(tree.common)], segments[len(tree.common):]
        rows = list(zip(accumulate(of_each, initial=begin), of_each))
        self.above: List[_Above] = []
        for below in (prompts, rows) if commons else ():
            of_common = _adjoined(below, tree.beginning)
            if sum(n for _, n in of_common):
                self.above.append(_Above.of(of_common, commons, [0] * len(commons), device))
        if sum(of_each):
            skipped = [n - m for n, m in zip(of_prompts, tree.remaining)]
            self.above.append(_Above.of(rows, prompts, skipped, device))
        if self._is_short(part):
            seen = _all_seen(own, commons, list(zip(tree.beginning, prompts, rows)))
            self.own, self.above = _Own.of([((0, len(seen)), seen)], device), []
            self.packed = Packed([x.band for x in self.own])

    def _is_short(self, part: int) -> bool:
        """Whether all pairs of tokens take less time than the parts of the attention."""
        pairs = [x.band.shape[0] * x.band.shape[1] ** 2 for x in self.own]
        pairs += [q.shape[0] * q.shape[1] * k.shape[1] for above in self.above for q, k in above.bands]
        return len(self._position) ** 2 < sum(pairs) + part * len(pairs)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: Options) -> Tensor:
        """Attention of all tokens: q (1, H, N, D), k (1, K, N, D), v (1, K, N, E) -> (1, N, H, E), where H is a
        multiple of K."""
        q, k, v = q[0], k[0], v[0]
        options = options.within(self._longest)
        if is_fast(q, v, options):
            return _Flash.apply(q, k, v, self, options).unsqueeze(0)
        return self.joined(q, k, v, options)[0].to(v.dtype).unsqueeze(0)

    def joined(self, q: Tensor, k: Tensor, v: Tensor, options: Options) -> Tuple[Tensor, Tensor]:
        """Attention of the tokens to their own segments and to those above, joined by the normalisers: (N, H, E), and
        the logarithms of the joint normalisers, (N, H)."""
        parts, fast, repeat = [], is_fast(q, v, options), len(q) // len(k)
        for own in self.own:
            x = _own(own.band, q, k, v)
            if fast:
                found = own.attend(*x, options.scale)
            else:
                found = plain(*x, self._seen_own(own, options.window), options)
            parts.append([own.band.take(x.transpose(1, 2)) for x in found])
        out, lse = (self.packed.join(list(x)) for x in zip(*parts))
        for above in self.above:
            parts = []
            for bands, offset in zip(above.bands, above.offset):
                seen = self._seen_above(*bands, offset, options.window, repeat)
                found = attended(*_above(*bands, q, k, v), seen, options)
                parts.append([bands[0].take(_unfold(x, repeat)) for x in found])
            joint, first, end = above.join(parts, out, lse), above.tokens.start, above.tokens.stop
            out, lse = (torch.cat([x[:first], y, x[end:]]) for x, y in zip((out, lse), joint))
        return out, lse

    def _seen_own(self, own: _Own, window: Optional[int]) -> Seen:
        """What tokens see of their own segment, (n or 1, 1, T, T), the same in all layers of a window."""
        key = (own.band, window)
        if key not in self._seen:
            tokens, device = own.band.shape[1], self._position.device
            before = torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()
            seen = before if own.seen is None else own.seen.keys
            if window is not None:
                at = own.band.place(self._position.unsqueeze(0))[0]  # (n, T)
                seen = seen & (at.unsqueeze(2) - at.unsqueeze(1) < window).unsqueeze(1)
            self._seen[key] = Seen(seen)
        return self._seen[key]

    def _seen_above(self, queries: Band, keys: Band, offset: Tensor, window: Optional[int],
                    repeat: int) -> Optional[Seen]:
        """What tokens see of the segment above theirs, (p, 1, 1 or rep M, L), the same in all layers of a window; None
        for all. ``offset`` (p, ): position of each segment's first token."""
        if window is None:
            return keys.filled
        key = (queries, keys, window, repeat)
        if key not in self._seen:
            at = queries.place(self._position.unsqueeze(0))[0] - offset.unsqueeze(1)  # (p, M)
            self._seen[key] = keys.within(window, at.repeat(1, repeat))
        return self._seen[key]


def _all_seen(
        own: List[_Segment], commons: List[Tuple[int, int]], prompts: List[Tuple[int, Tuple[int, int], Tuple[int, int]]]
) -> np.ndarray:
    """Which tokens each token of the packed row sees, (N, N). ``prompts`` has the number of the beginning, the segment,
    and the segment of all rows of each prompt."""
    seen = np.zeros((sum(n for (_, n), _ in own), ) * 2, dtype=bool)
    for segment, mask in own:
        seen[_range(segment), _range(segment)] = np.tri(segment[1], dtype=bool) if mask is None else mask
    for number, prompt, row in prompts:
        seen[_range(row), _range(prompt)] = True
        for common in commons[number:number + 1]:  # none if there are no common beginnings
            seen[_range(prompt), _range(common)] = seen[_range(row), _range(common)] = True
    return seen


def _range(segment: Tuple[int, int]) -> slice:
    return slice(segment[0], sum(segment))


def _adjoined(segments: List[Tuple[int, int]], number: List[int]) -> List[Tuple[int, int]]:
    """Join adjacent segments of the same number, of which each has at least one; numbers ascend from 0."""
    ends: Dict[int, Tuple[int, int]] = {}
    for i, (start, n) in zip(number, segments):
        first, before = ends.get(i, (start, 0))
        ends[i] = (first, before + n)
    return list(ends.values())


def _repeat(x: Tensor, heads: int) -> Tensor:
    """(n, K, *) -> (n, H, *)."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def _fold(q: Tensor, groups: int) -> Tensor:
    """Heads that share keys become more queries: (p, H, M, D) -> (p, K, rep M, D)."""
    return q.unflatten(1, (groups, -1)).flatten(2, 3)


def _unfold(x: Tensor, repeat: int) -> Tensor:
    """(p, K, rep M, *) -> (p, M, H, *)."""
    return x.unflatten(2, (repeat, -1)).flatten(1, 2).transpose(1, 2)


class _Flash(torch.autograd.Function):
    """``Whole.joined`` by flash attention. The backward pass uses the joint result and normaliser for all parts, so
    that the gradient of each part is the gradient of the joint result."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Whole, options: Options) -> Tensor:
        out, lse = plan.joined(q, k, v, options)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan, ctx.scale = plan, options.scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        dtype, (*saved, lse) = grad.dtype, (grad, *ctx.saved_tensors)
        grad, q, k, v, out = (x if x.is_cuda else widened(x) for x in saved)
        plan, groups, repeat = ctx.plan, len(k), len(q) // len(k)
        grad, out, lse = (x.transpose(0, 1) for x in (grad, out, lse))  # (H, N, D), (H, N)
        parts = []
        for own in plan.own:
            band, x = own.band, _own(own.band, q, k, v)
            # a padded cell sees later tokens, whose scores may exceed its normaliser by far: its weights become 0
            o, g = (band.place_filled(y).transpose(0, 1) for y in (out, grad))
            m = band.place_filled(lse, math.inf).transpose(0, 1).contiguous()
            dq, dk, dv = own.backward(g, x, o, m, ctx.scale)
            if repeat > 1:
                dk, dv = (y.unflatten(1, (groups, repeat)).sum(2) for y in (dk, dv))
            parts.append(tuple(band.take(y.transpose(1, 2)) for y in (dq, dk, dv)))
        dq, dk, dv = (plan.packed.join(list(x)) for x in zip(*parts))  # (N, H or K, D)
        for above in plan.above:
            parts = []
            for queries, keys in above.bands:
                x = _above(queries, keys, q, k, v)
                o, m = (_fold(queries.place(y).transpose(0, 1), groups) for y in (out, lse))
                g = _fold(queries.place_filled(grad).transpose(0, 1), groups)
                da, dka, dva = flash_backward(g, *x, o, m.contiguous(), ctx.scale, added(keys.filled, q))
                parts.append(queries.take(_unfold(da, repeat)))
                for total, y in ((dk, dka), (dv, dva)):
                    total[keys.tokens] += keys.take(y.transpose(1, 2))
            dq[above.tokens] += above.packed.join(parts)
        return (*(x.transpose(0, 1).to(dtype) for x in (dq, dk, dv)), None, None)


def _own(band: Band, q: Tensor, k: Tensor, v: Tensor) -> Tuple[Tensor, ...]:
    """Queries, keys and values of segments in a grid, for attention to themselves."""
    q, k, v = (band.place(x).transpose(0, 1) for x in (q, k, v))  # (n, H or K, T, D)
    return q, _repeat(k, q.shape[1]), _repeat(v, q.shape[1])


def _above(queries: Band, keys: Band, q: Tensor, k: Tensor, v: Tensor) -> Tuple[Tensor, ...]:
    """Queries (p, K, rep M, D), and keys and values (p, K, L, D) of the segments above them."""
    above = _fold(queries.place(q).transpose(0, 1), len(k))
    return (above, *(keys.place(x).transpose(0, 1) for x in (k, v)))
