"""Log-probabilities over a few kept tokens, for ``linear_log_prob``."""
from typing import Any, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ding_grpo.rl_utils.check import wide_type

from .tiles import Head, Slope, Tile, finite, slices, with_rules, without_autocast
from .token_rules import CountedRules


class KeptLogProb(torch.autograd.Function):
    """Log-probabilities over the tokens that a sampler kept. It copies their rows of the output matrix, for some tokens
    at a time."""

    @staticmethod
    @without_autocast
    def forward(
            ctx: Any, hidden: Tensor, weight: Tensor, bias: Optional[Tensor], index: Tensor, kept: Tensor, head: Head,
            rules: Optional[CountedRules], tokens: int
    ) -> Tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(hidden, weight, bias, index, kept)
        ctx.head, ctx.rules, ctx.tokens = head, rules, tokens
        logp, entropy, squares = (hidden.new_empty(len(hidden), dtype=wide_type(hidden)) for _ in range(3))
        ctx.mark_non_differentiable(squares)
        tile = Tile(hidden, weight, bias, head, rules)
        for rows in slices(len(hidden), tokens):
            x, _, taken = _kept_logits(tile, index, kept, rows, False)
            all_logp = _log_softmax(x)
            logp[rows] = all_logp.gather(-1, taken).squeeze(-1)
            share = all_logp.exp()
            entropy[rows], squares[rows] = -(share * finite(all_logp)).sum(-1), share.square().sum(-1)
        return logp, entropy, squares

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, grad_logp: Tensor, grad_entropy: Tensor, _: Tensor) -> Tuple[Optional[Tensor], ...]:
        hidden, weight, bias, index, kept = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        wide = grad_logp.dtype
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros(weight.shape, dtype=wide, device=weight.device) if needs_weight else None
        grad_bias = torch.zeros(weight.shape[:1], dtype=wide, device=weight.device) if needs_bias else None
        tile = Tile(hidden, weight, bias, ctx.head, ctx.rules)
        for rows in slices(len(hidden), ctx.tokens):
            h, g = hidden[rows], grad_logp[rows, None]
            x, slope, taken = _kept_logits(tile, index, kept, rows, True)
            logp = _log_softmax(x)
            p, logp = logp.exp(), finite(logp)
            entropy = -(p * logp).sum(-1, keepdim=True)
            grad = p * -(g + grad_entropy[rows, None] * (logp + entropy))
            grad.scatter_add_(-1, taken, g)
            h = ctx.head.factor(h)
            grad = (grad if slope is None else grad.mul_(slope)).to(h.dtype)  # (N, K)
            ids = kept[rows].clamp(min=0)
            if needs_hidden:
                grad_hidden[rows] = torch.bmm(grad.unsqueeze(1), ctx.head.factor(weight[ids])).squeeze(1)
            if needs_weight:
                outer = grad.unsqueeze(-1) * h.unsqueeze(1)  # (N, K, H)
                grad_weight.index_add_(0, ids.flatten(), outer.flatten(0, 1).to(wide))
            if needs_bias:
                grad_bias.index_add_(0, ids.flatten(), grad.flatten().to(wide))
        grad_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
        grad_bias = None if grad_bias is None else grad_bias.to(bias.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None, None


def _log_softmax(x: Tensor) -> Tensor:
    """``torch.log_softmax`` over the last dimension adds in sequence: 3e-5 off for 150,000 logits. This one: 2e-6."""
    x = x - x.amax(-1, keepdim=True)
    return x - x.logsumexp(-1, keepdim=True)


def _kept_logits(tile: Tile, index: Tensor, kept: Tensor, rows: slice,
                 with_slope: bool) -> Tuple[Tensor, Slope, Tensor]:
    """Logits (N, K), their slope, and the position of the sampled token in them, (N, 1)."""
    head, bias, kept = tile.head, tile.bias, kept[rows]
    ids = kept.clamp(min=0)
    z = torch.bmm(head.factor(tile.weight[ids]), head.factor(tile.hidden[rows]).unsqueeze(-1)).squeeze(-1)
    x = head.logits(z if bias is None else z + bias[ids])
    slope = with_rules(x, head, tile.rules, rows, ids, with_slope)
    taken = (kept == index[rows].unsqueeze(-1)).to(torch.uint8).argmax(-1, keepdim=True)
    return x.masked_fill_(kept < 0, float('-inf')), slope, taken
