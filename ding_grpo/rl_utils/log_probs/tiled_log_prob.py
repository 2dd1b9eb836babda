"""Log-probabilities over the whole vocabulary, for ``linear_log_prob``."""
from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ding_grpo.rl_utils.check import wide_type

from .tiles import Head, Sampled, Tile, slices, vocabulary_slices, without_autocast
from .token_rules import CountedRules


class TiledLogProb(torch.autograd.Function):
    """Processes the logits in tiles of some tokens by a part of the vocabulary. A tile is computed, used and
    overwritten in the processor's cache, once in forward and once in backward."""

    @staticmethod
    @without_autocast
    def forward(
            ctx: Any, hidden: Tensor, weight: Tensor, bias: Optional[Tensor], index: Tensor, state: Optional[Tensor],
            head: Head, rules: Optional[CountedRules], tokens: int, return_entropy: bool, return_squares: bool
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        wide = wide_type(hidden)
        highest, total, entropy, squares = (hidden.new_zeros(len(hidden), dtype=wide) for _ in range(4))
        taken = hidden.new_zeros(len(index), dtype=wide)
        entropy, squares = entropy if return_entropy else None, squares if return_squares else None
        tile, sampled = Tile(hidden, weight, bias, head, rules), Sampled.of(index, state, len(hidden))
        for rows in slices(len(hidden), tokens):
            parts: List[List[Tensor]] = []
            for columns in vocabulary_slices(weight):
                x = tile.logits(rows, columns)
                inside, place = sampled.find(rows, columns)
                taken[sampled.tokens(rows)] += torch.where(inside, x.take(place), 0)
                top = x.amax(-1, keepdim=True).clamp(min=torch.finfo(wide).min)  # not minus infinity
                x.sub_(top)
                distance = x.clamp(min=-1000) if return_entropy else None  # exp is 0 there; 0 * infinity would be NaN
                share = x.exp_()
                part = [top.squeeze(-1), share.sum(-1)]
                if return_entropy:
                    part.append(distance.mul_(share).sum(-1))
                if return_squares:
                    part.append(share.square_().sum(-1))
                parts.append(part)
            tops, sums, *others = (torch.stack(part) for part in zip(*parts))  # (tiles, N) each
            highest[rows] = tops.amax(0)
            away = tops - highest[rows]
            scale = away.exp()
            total[rows] = (scale * sums).sum(0)
            if return_entropy:  # H = log total - E[x - highest]; both stay small however large x is
                distance = others[0] + away.clamp(min=-1000) * sums
                entropy[rows] = total[rows].log() - (scale * distance).sum(0) / total[rows]
            if return_squares:
                squares[rows] = (scale.square() * others[-1]).sum(0) / total[rows].square()
        ctx.save_for_backward(hidden, weight, bias, highest, total, entropy)
        ctx.head, ctx.rules, ctx.tokens, ctx.sampled = head, rules, tokens, sampled
        ctx.set_materialize_grads(False)
        if return_squares:
            ctx.mark_non_differentiable(squares)
        # Not taken - (highest + log total): at low temperatures the sum is in the thousands and loses precision.
        return taken - sampled.of_tokens(highest) - sampled.of_tokens(total.log()), entropy, squares

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, grad_logp: Optional[Tensor], grad_entropy: Optional[Tensor],
                 _: None) -> Tuple[Optional[Tensor], ...]:
        (hidden, weight, bias, highest, total, entropy), sampled = ctx.saved_tensors, ctx.sampled
        grad_logp = total.new_zeros(len(sampled.index)) if grad_logp is None else grad_logp
        grad_state = sampled.sum(grad_logp, total)  # (M, )
        tile = Tile(hidden, weight, bias, ctx.head, ctx.rules)

        def grad_of(rows: slice, columns: slice) -> Tensor:
            (x, slope), g = tile.logits_and_slope(rows, columns), grad_state[rows, None]
            # p = exp(x - highest) / total, as in forward; the division is merged into the factor of a row
            x.sub_(highest[rows, None])
            if grad_entropy is None:
                grad = x.exp_().mul_(-g / total[rows, None])
            else:  # dH / dx = -p (log p + H)
                x.clamp_(min=-1000)  # p is 0 there in any type; 0 * infinity would be NaN
                grad = x + (entropy - total.log())[rows, None]
                grad.mul_(-grad_entropy[rows, None] / total[rows, None]).sub_(g / total[rows, None]).mul_(x.exp_())
            inside, place = sampled.find(rows, columns)
            grad.view(-1).index_add_(0, place, torch.where(inside, grad_logp[sampled.tokens(rows)], 0))
            return grad if slope is None else grad.mul_(slope)

        return (*tile.backward(grad_of, ctx.needs_input_grad[:3], ctx.tokens), *[None] * 7)
