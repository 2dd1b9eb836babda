"""Learning with shared prompts: the differentiable attention of prompts and completions that are read together."""
from itertools import accumulate
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .bands import Band, Packed, divide
from .shared_attention import CALL, TOKEN, Options, added, flash, flash_backward, is_fast, plain


class Whole:
    """
    Overview:
        Differentiable attention of prompts and completions that are read together.
    """

    def __init__(self, prompt_length: Tensor, row: Tensor, length: Tensor) -> None:
        """
        Arguments:
            - prompt_length (:obj:`torch.LongTensor`): :math:`(P, )`, number of tokens of each prompt.
            - row (:obj:`torch.LongTensor`): :math:`(B, )`, the prompt that each row continues, in ascending order.
            - length (:obj:`torch.LongTensor`): :math:`(B, )`, number of tokens of each row.
        """
        device = row.device
        of_prompts, of_rows, row = prompt_length.tolist(), length.tolist(), row.tolist()
        self._longest = max(of_prompts + [of_prompts[prompt] + n for prompt, n in zip(row, of_rows)])
        lengths = of_prompts + of_rows
        segments = [s for s in zip(accumulate(lengths, initial=0), lengths) if s[1] > 0]
        self.own = [
            Band([segments[i] for i in chosen], device)
            for chosen in divide([(n, ) for _, n in segments], lambda rows, n: CALL + rows * n * (n / 2 + TOKEN))
        ]
        self.packed = Packed(self.own)
        self.prompts = sum(of_prompts)  # number of tokens of all prompts
        self.above: List[Tuple[Band, Band]] = []  # tokens of all rows of a prompt, and the prompt
        continued: Dict[int, int] = {}
        for prompt, n in zip(row, of_rows):
            continued[prompt] = continued.get(prompt, 0) + n
        continued = {prompt: n for prompt, n in continued.items() if n > 0}
        if continued:
            starts = list(accumulate(of_prompts, initial=0))
            queries = list(zip(accumulate(continued.values(), initial=self.prompts), continued.values()))
            keys = [(starts[prompt], of_prompts[prompt]) for prompt in continued]
            sizes = [(q[1], k[1]) for q, k in zip(queries, keys)]
            for chosen in divide(sizes, lambda count, m, n: CALL + count * (m * (n + TOKEN) + n * TOKEN)):
                self.above.append(tuple(Band([x[i] for i in chosen], device) for x in (queries, keys)))
            self.packed_rows = Packed([band for band, _ in self.above], self.prompts)
            # distance of each token of a row from its prompt's first token, for windows
            steps = [torch.arange(n) + of_prompts[prompt] for prompt, n in zip(row, of_rows)]
            self.position = torch.cat(steps).to(device)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: Options) -> Tensor:
        """
        Overview:
            Attention of all tokens.
        Shapes:
            - q (:obj:`torch.Tensor`): :math:`(1, H, N, D)`
            - k (:obj:`torch.Tensor`): :math:`(1, K, N, D)`, H a multiple of K
            - v (:obj:`torch.Tensor`): :math:`(1, K, N, E)`
            - out (:obj:`torch.Tensor`): :math:`(1, N, H, E)`
        """
        q, k, v = q[0], k[0], v[0]
        options = options.within(self._longest)
        if is_fast(q, v, options):
            return _Flash.apply(q, k, v, self, options.scale).unsqueeze(0)
        parts = [_plain_own(band, q, k, v, options) for band in self.own]
        out, lse = (self.packed.join(list(x)) for x in zip(*parts))  # (N, H, E), (N, H)
        if self.above:
            parts = [_plain_above(*bands, q, k, v, options, self._distance(*bands)) for bands in self.above]
            of_prompt, of_prompt_lse = (self.packed_rows.join(list(x)) for x in zip(*parts))
            share = torch.sigmoid(lse[self.prompts:] - of_prompt_lse).unsqueeze(-1)
            out = torch.cat([out[:self.prompts], torch.lerp(of_prompt, out[self.prompts:], share)])
        return out.to(v.dtype).unsqueeze(0)

    def _distance(self, queries: Band, keys: Band) -> Tensor:
        """Distance from each query to each key, in tokens, (p, M, L)."""
        position = F.pad(self.position, (self.prompts, 0))  # of the packed row
        at = queries.place(position.unsqueeze(0))[0]  # (p, M)
        return at.unsqueeze(-1) - torch.arange(keys.shape[1], device=at.device)


def _plain_own(band: Band, q: Tensor, k: Tensor, v: Tensor, options: Options) -> Tuple[Tensor, Tensor]:
    """Attention of tokens to their own segment, (tokens, H, E), and the logarithm of its normaliser, (tokens, H)."""
    q, k, v = (band.place(x).transpose(0, 1) for x in (q, k, v))  # (n, H or K, T, D)
    k, v = (_repeat(x, q.shape[1]) for x in (k, v))
    step = torch.arange(band.shape[1], device=q.device)
    distance = step.unsqueeze(1) - step
    seen = distance >= 0 if options.window is None else (distance >= 0) & (distance < options.window)
    out, lse = plain(q, k, v, seen, options)
    return band.take(out.transpose(1, 2)), band.take(lse.transpose(1, 2))


def _plain_above(queries: Band, keys: Band, q: Tensor, k: Tensor, v: Tensor, options: Options,
                 distance: Tensor) -> Tuple[Tensor, Tensor]:
    """Attention of the tokens of rows to their prompt, in the form of ``_plain_own``."""
    q = queries.place(q).transpose(0, 1)  # (p, H, M, D)
    groups, repeat = len(k), q.shape[1] // len(k)
    k, v = (keys.place(x).transpose(0, 1) for x in (k, v))  # (p, K, L, D)
    seen = torch.arange(keys.shape[1], device=q.device) < keys.length.view(-1, 1, 1)  # (p, 1, L)
    if options.window is not None:
        seen = (seen & (distance < options.window)).repeat(1, repeat, 1)  # (p, rep M, L)
    out, lse = plain(_fold(q, groups), k, v, seen.unsqueeze(1), options)
    return tuple(queries.take(_unfold(x, repeat)) for x in (out, lse))


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
    """
    Overview:
        ``Whole.attend`` by the flash attention for CPUs, to the tokens' own segments and to the prompts' keys, joined \
        by their normalisers. The backward pass uses the joint result and normaliser for both parts, so that the \
        gradient of each part is the gradient of the joint result.
    Shapes:
        As in ``Whole.attend``, without the leading 1.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Whole, scale: float) -> Tensor:
        parts = []
        for band in plan.own:
            x = _own(band, q, k, v)
            out, lse = flash(*x, is_causal=True, scale=scale)
            parts.append((band.take(out.transpose(1, 2)), band.take(lse.transpose(1, 2))))
        out, lse = (plan.packed.join(list(x)) for x in zip(*parts))  # (N, H, D), (N, H)
        if plan.above:
            parts, repeat = [], len(q) // len(k)
            for queries, keys in plan.above:
                above, mask = _above(queries, keys, q, k, v)
                parts.append(
                    tuple(queries.take(_unfold(x, repeat)) for x in flash(*above, attn_mask=mask, scale=scale))
                )
            of_prompt, of_prompt_lse = (plan.packed_rows.join(list(x)) for x in zip(*parts))
            own, own_lse = out[plan.prompts:], lse[plan.prompts:]
            share = torch.sigmoid(own_lse - of_prompt_lse).unsqueeze(-1)
            joint = torch.lerp(of_prompt.to(share.dtype), own.to(share.dtype), share).to(out.dtype)
            out = torch.cat([out[:plan.prompts], joint])
            lse = torch.cat([lse[:plan.prompts], torch.logaddexp(own_lse, of_prompt_lse)])
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan, ctx.scale = plan, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        q, k, v, out, lse = ctx.saved_tensors
        plan, groups, repeat = ctx.plan, len(k), len(q) // len(k)
        grad, out, lse = (x.transpose(0, 1) for x in (grad, out, lse))  # (H, N, D), (H, N)
        parts = []
        for band in plan.own:
            x = _own(band, q, k, v)
            o, m = (band.place(y).transpose(0, 1).contiguous() for y in (out, lse))
            g = band.place_gradient(grad).transpose(0, 1).contiguous()
            dq, dk, dv = flash_backward(g, *x, o, m, 0.0, True, scale=ctx.scale)
            if repeat > 1:
                dk, dv = (y.unflatten(1, (groups, repeat)).sum(2) for y in (dk, dv))
            parts.append(tuple(band.take(y.transpose(1, 2)) for y in (dq, dk, dv)))
        dq, dk, dv = (plan.packed.join(list(x)) for x in zip(*parts))  # (N, H or K, D)
        parts = []
        for queries, keys in plan.above:
            above, mask = _above(queries, keys, q, k, v)
            o, m = (_fold(queries.place(y).transpose(0, 1), groups).contiguous() for y in (out, lse))
            g = _fold(queries.place_gradient(grad).transpose(0, 1), groups).contiguous()
            da, dkp, dvp = flash_backward(g, *above, o, m, 0.0, False, attn_mask=mask, scale=ctx.scale)
            parts.append(queries.take(_unfold(da, repeat)))
            for total, y in ((dk, dkp), (dv, dvp)):
                total[keys.tokens] += keys.take(y.transpose(1, 2))
        if parts:
            dq[plan.prompts:] += plan.packed_rows.join(parts)
        return dq.transpose(0, 1), dk.transpose(0, 1), dv.transpose(0, 1), None, None


def _own(band: Band, q: Tensor, k: Tensor, v: Tensor) -> Tuple[Tensor, ...]:
    q, k, v = (band.place(x).transpose(0, 1) for x in (q, k, v))  # (n, H or K, T, D)
    return q, _repeat(k, q.shape[1]), _repeat(v, q.shape[1])


def _above(queries: Band, keys: Band, q: Tensor, k: Tensor, v: Tensor) -> Tuple[Tuple[Tensor, ...], Optional[Tensor]]:
    """Queries of rows, keys and values of their prompts, and the mask that is added to the scores."""
    above = _fold(queries.place(q).transpose(0, 1), len(k))  # (p, K, rep M, D)
    mask = None
    if not keys.even:
        key = torch.arange(keys.shape[1], device=q.device)
        mask = added(key < keys.length.view(-1, 1, 1, 1), q)
    return (above, *(keys.place(x).transpose(0, 1) for x in (k, v))), mask
