from typing import Any, List, Optional, Tuple, Union

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .check import check_leading, check_number, check_tensor
from .tiles import TOKENS, VOCABULARY, Head, Tile, finite, slices, vocabulary_slices, wide_type, without_autocast


def linear_log_prob(
        hidden: Tensor,
        weight: Tensor,
        index: Tensor,
        mask: Optional[Tensor] = None,
        bias: Optional[Tensor] = None,
        temperature: float = 1.0,
        chunk_size: Optional[int] = None,
        kept: Optional[Tensor] = None,
        scale: float = 1.0,
        softcap: Optional[float] = None,
        return_entropy: bool = False,
        return_squares: bool = False,
) -> Union[Tensor, Tuple[Tensor, ...]]:
    """
    Overview:
        Log-probabilities of the sampled tokens directly from hidden states and the output matrix. Only the logits of \
        some tokens over a part of the vocabulary are in memory at a time. Backward computes them again. It cannot be \
        differentiated twice; for second derivatives use ``efficient_method`` on logits.

        The logits are ``softcap * tanh(scale * (hidden weight^T + bias) / softcap) / temperature``, without the tanh \
        if ``softcap`` is None. ``scale`` is Cohere's ``logit_scale`` or the inverse of Granite's ``logits_scaling``; \
        ``softcap`` is Gemma's ``final_logit_softcapping``.
    Arguments:
        - hidden (:obj:`torch.FloatTensor`): Hidden states that predict the sampled tokens, of any float type. Half \
            types are multiplied in their own type and normalised in float32.
        - weight (:obj:`torch.FloatTensor`): Output matrix.
        - index (:obj:`torch.LongTensor`): The sampled tokens.
        - mask (:obj:`Optional[torch.Tensor]`): Where it is 0, nothing is computed and the results are 0.
        - bias (:obj:`Optional[torch.FloatTensor]`): Output bias.
        - temperature (:obj:`float`): Sampling temperature.
        - chunk_size (:obj:`Optional[int]`): Tokens at a time. None uses 2048; with ``kept``, as many tokens as need \
            2^21 copied numbers.
        - kept (:obj:`Optional[torch.LongTensor]`): The tokens that a sampler kept for each token, each once, padded \
            with -1. The distribution is over these, which must include the sampled token.
        - scale (:obj:`float`): Factor of the logits.
        - softcap (:obj:`Optional[float]`): Bound of the logits.
        - return_entropy (:obj:`bool`): Whether to also return the entropies of the distributions.
        - return_squares (:obj:`bool`): Whether to also return the sums of their squared probabilities.
    Returns:
        - logp (:obj:`torch.FloatTensor`): In nats, float32 or wider.
        - entropy (:obj:`torch.FloatTensor`): In nats, differentiable; only with ``return_entropy``.
        - squares (:obj:`torch.FloatTensor`): Without a gradient; only with ``return_squares``, as the last.
    Shapes:
        - hidden (:obj:`torch.FloatTensor`): :math:`(B, S, H)`
        - weight (:obj:`torch.FloatTensor`): :math:`(V, H)`
        - index (:obj:`torch.LongTensor`): :math:`(B, S)`
        - mask (:obj:`torch.Tensor`): :math:`(B, S)`
        - bias (:obj:`torch.FloatTensor`): :math:`(V, )`
        - kept (:obj:`torch.LongTensor`): :math:`(B, S, K)`
        - logp (:obj:`torch.FloatTensor`): :math:`(B, S)`
        - entropy, squares (:obj:`torch.FloatTensor`): :math:`(B, S)`
    Raises:
        - ValueError: If a shape, a type or an option is wrong.
    """
    _check(hidden, weight, index, mask, bias, kept)
    check_number('temperature', temperature, open_low=True)
    check_number('scale', scale, open_low=True)
    if softcap is not None:
        check_number('softcap', softcap, open_low=True)
    if chunk_size is not None and not (isinstance(chunk_size, int) and chunk_size >= 1):
        raise ValueError(f'chunk_size = {chunk_size!r}: must be an integer of at least 1')
    counted = torch.ones_like(index, dtype=torch.bool) if mask is None else mask != 0
    taken, head = index[counted], Head(scale, softcap, temperature)
    # hidden[counted], (N, H), whose backward would sort
    read = hidden.flatten(0, 1).index_select(0, counted.flatten().nonzero().squeeze(1))
    if taken.numel() and not 0 <= taken.min() <= taken.max() < len(weight):
        raise ValueError(
            f'index from {taken.min()} to {taken.max()}: must be tokens from 0 to V - 1 = {len(weight) - 1}'
        )
    if kept is None:
        logp, *others = _TiledLogProb.apply(
            read, weight, bias, taken, head, chunk_size or TOKENS, return_entropy, return_squares
        )  # (N, ) each
    else:
        chosen = kept[counted]  # (N, K)
        if not (chosen == taken.unsqueeze(-1)).any(-1).all():
            raise ValueError('kept: must contain the sampled token of each position that the mask counts')
        if chosen.numel() and not -1 <= chosen.min() <= chosen.max() < len(weight):
            raise ValueError(f'kept from {chosen.min()} to {chosen.max()}: must be tokens, or -1 for padding')
        size = chunk_size or max(1, TOKENS * VOCABULARY // max(chosen.shape[-1] * hidden.shape[-1], 1))
        logp, *others = _KeptLogProb.apply(read, weight, bias, taken, chosen, head, size)

    def place(values: Tensor) -> Tensor:
        return values.new_zeros(index.shape).masked_scatter(counted, values)

    asked = [place(x) for x, returned in zip(others, (return_entropy, return_squares)) if returned]
    return (place(logp), *asked) if asked else place(logp)


class _TiledLogProb(torch.autograd.Function):
    """Processes the logits in tiles of some tokens by a part of the vocabulary. A tile is computed, used and
    overwritten in the processor's cache, once in forward and once in backward."""

    @staticmethod
    @without_autocast
    def forward(
            ctx: Any, hidden: Tensor, weight: Tensor, bias: Optional[Tensor], index: Tensor, head: Head, tokens: int,
            return_entropy: bool, return_squares: bool
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        wide = wide_type(hidden)
        taken, highest, total, entropy, squares = (hidden.new_zeros(len(hidden), dtype=wide) for _ in range(5))
        entropy, squares = entropy if return_entropy else None, squares if return_squares else None
        tile = Tile(hidden, weight, bias, head, index)
        for rows in slices(len(hidden), tokens):
            parts: List[List[Tensor]] = []
            for columns in vocabulary_slices(weight):
                x = tile.logits(rows, columns)
                inside, place = tile.where_taken(rows, columns)
                taken[rows] += torch.where(inside, x.gather(-1, place), 0).squeeze(-1)
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
        ctx.save_for_backward(hidden, weight, bias, index, highest, total, entropy)
        ctx.head, ctx.tokens = head, tokens
        ctx.set_materialize_grads(False)
        if return_squares:
            ctx.mark_non_differentiable(squares)
        # Not taken - (highest + log total): at low temperatures the sum is in the thousands and loses precision.
        return taken - highest - total.log(), entropy, squares

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, grad_logp: Optional[Tensor], grad_entropy: Optional[Tensor],
                 _: None) -> Tuple[Optional[Tensor], ...]:
        hidden, weight, bias, index, highest, total, entropy = ctx.saved_tensors
        grad_logp = torch.zeros_like(total) if grad_logp is None else grad_logp
        tile = Tile(hidden, weight, bias, ctx.head, index)

        def grad_of(rows: slice, columns: slice) -> Tensor:
            x, g = tile.logits(rows, columns), grad_logp[rows, None]
            slope = ctx.head.slope(x)
            # p = exp(x - highest) / total, as in forward; the division is merged into the factor of a row
            x.sub_(highest[rows, None])
            if grad_entropy is None:
                grad = x.exp_().mul_(-g / total[rows, None])
            else:  # dH / dx = -p (log p + H)
                x.clamp_(min=-1000)  # p is 0 there in any type; 0 * infinity would be NaN
                grad = x + (entropy - total.log())[rows, None]
                grad.mul_(-grad_entropy[rows, None] / total[rows, None]).sub_(g / total[rows, None]).mul_(x.exp_())
            inside, place = tile.where_taken(rows, columns)
            grad.scatter_add_(-1, place, torch.where(inside, g, 0))
            return grad if slope is None else grad.mul_(slope)

        return (*tile.backward(grad_of, ctx.needs_input_grad[:3], ctx.tokens), None, None, None, None, None)


class _KeptLogProb(torch.autograd.Function):
    """Log-probabilities over the tokens that a sampler kept. It copies their rows of the output matrix, for some tokens
    at a time."""

    @staticmethod
    @without_autocast
    def forward(
            ctx: Any, hidden: Tensor, weight: Tensor, bias: Optional[Tensor], index: Tensor, kept: Tensor, head: Head,
            tokens: int
    ) -> Tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(hidden, weight, bias, index, kept)
        ctx.head, ctx.tokens = head, tokens
        logp, entropy, squares = (hidden.new_empty(len(hidden), dtype=wide_type(hidden)) for _ in range(3))
        ctx.mark_non_differentiable(squares)
        for rows in slices(len(hidden), tokens):
            x, taken = _kept_logits(hidden[rows], weight, bias, index[rows], kept[rows], head)
            all_logp = torch.log_softmax(x, dim=-1)
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
        for rows in slices(len(hidden), ctx.tokens):
            h, g = hidden[rows], grad_logp[rows, None]
            x, taken = _kept_logits(h, weight, bias, index[rows], kept[rows], ctx.head)
            logp = torch.log_softmax(x, dim=-1)
            p, logp = logp.exp(), finite(logp)
            entropy = -(p * logp).sum(-1, keepdim=True)
            grad = p * -(g + grad_entropy[rows, None] * (logp + entropy))
            grad.scatter_add_(-1, taken, g)
            slope = ctx.head.slope(x)
            grad = (grad if slope is None else grad.mul_(slope)).to(hidden.dtype)  # (N, K)
            ids = kept[rows].clamp(min=0)
            if needs_hidden:
                grad_hidden[rows] = torch.bmm(grad.unsqueeze(1), weight[ids]).squeeze(1)
            if needs_weight:
                outer = grad.unsqueeze(-1) * h.unsqueeze(1)  # (N, K, H)
                grad_weight.index_add_(0, ids.flatten(), outer.flatten(0, 1).to(wide))
            if needs_bias:
                grad_bias.index_add_(0, ids.flatten(), grad.flatten().to(wide))
        grad_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
        grad_bias = None if grad_bias is None else grad_bias.to(bias.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


def _kept_logits(hidden: Tensor, weight: Tensor, bias: Optional[Tensor], index: Tensor, kept: Tensor,
                 head: Head) -> Tuple[Tensor, Tensor]:
    """Logits (N, K), and the position of the sampled token in them, (N, 1)."""
    ids = kept.clamp(min=0)
    z = torch.bmm(weight[ids], hidden.unsqueeze(-1)).squeeze(-1)
    z = z if bias is None else z + bias[ids]
    taken = (kept == index.unsqueeze(-1)).to(torch.uint8).argmax(-1, keepdim=True)
    return head.logits(z).masked_fill(kept < 0, float('-inf')), taken


def _check(
        hidden: Tensor, weight: Tensor, index: Tensor, mask: Optional[Tensor], bias: Optional[Tensor],
        kept: Optional[Tensor]
) -> None:
    check_leading('hidden', hidden, '(B, S, H)')
    check_leading('weight', weight, '(V, H)')
    lead, vocabulary = tuple(hidden.shape[:2]), len(weight)
    if weight.shape[1] != hidden.shape[2] or weight.dtype != hidden.dtype:
        raise ValueError(
            f'weight {tuple(weight.shape)} of {weight.dtype}: must be {hidden.dtype} of shape '
            f'(V, H = {hidden.shape[2]})'
        )
    check_tensor('index', index, lead, '(B, S)', 'int64')
    check_tensor('mask', mask, lead, '(B, S)', 'numbers', optional=True)
    check_tensor('bias', bias, (vocabulary, ), '(V, )', optional=True)
    if bias is not None and bias.dtype != hidden.dtype:
        raise ValueError(f'bias of {bias.dtype}: must be {hidden.dtype}, the type of hidden')
    if kept is not None and (kept.dim() != 3 or tuple(kept.shape[:2]) != lead or kept.dtype != torch.long):
        raise ValueError(f'kept {tuple(kept.shape)} of {kept.dtype}: must be int64 of shape (B, S, K), (B, S) = {lead}')
