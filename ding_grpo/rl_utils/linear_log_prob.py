from typing import Any, List, Optional, Tuple, Union

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .check import check_leading, check_number, check_tensor
from .kept_log_prob import KeptLogProb
from .tiles import TOKENS, Head, Sampled, Tile, slices, tile_width, vocabulary_slices, wide_type, without_autocast
from .token_rules import CountedRules, TokenRules


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
        rounded: bool = False,
        return_entropy: bool = False,
        return_squares: bool = False,
        rules: Optional[TokenRules] = None,
        state: Optional[Tensor] = None,
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
        - rounded (:obj:`bool`): Whether the factors of all matrix products are rounded to bfloat16, with sums in \
            float32. Faster on a GPU.
        - return_entropy (:obj:`bool`): Whether to also return the entropies of the distributions.
        - return_squares (:obj:`bool`): Whether to also return the sums of their squared probabilities.
        - rules (:obj:`Optional[TokenRules]`): What the sampler did to the logits before the division by the \
            temperature. Its ``kept_bits`` and ``kept`` exclude each other.
        - state (:obj:`Optional[torch.LongTensor]`): Which hidden state predicts each token. A state that predicts \
            several tokens is multiplied once, except with ``kept`` and with rules that differ between tokens.
    Returns:
        - logp (:obj:`torch.FloatTensor`): In nats, float32 or wider.
        - entropy (:obj:`torch.FloatTensor`): In nats, differentiable; only with ``return_entropy``.
        - squares (:obj:`torch.FloatTensor`): Without a gradient; only with ``return_squares``, as the last.
    Shapes:
        - hidden (:obj:`torch.FloatTensor`): :math:`(B, S, H)`; with ``state`` :math:`(M, H)`
        - weight (:obj:`torch.FloatTensor`): :math:`(V, H)`
        - index, state (:obj:`torch.LongTensor`): :math:`(B, S)`
        - mask (:obj:`torch.Tensor`): :math:`(B, S)`
        - bias (:obj:`torch.FloatTensor`): :math:`(V, )`
        - kept (:obj:`torch.LongTensor`): :math:`(B, S, K)`
        - logp (:obj:`torch.FloatTensor`): :math:`(B, S)`
        - entropy, squares (:obj:`torch.FloatTensor`): :math:`(B, S)`
    Raises:
        - ValueError: If a shape, a type or an option is wrong.
    """
    _check(hidden, weight, index, mask, bias, kept, rules, state)
    check_number('temperature', temperature, open_low=True)
    check_number('scale', scale, open_low=True)
    if softcap is not None:
        check_number('softcap', softcap, open_low=True)
    if chunk_size is not None and not (isinstance(chunk_size, int) and chunk_size >= 1):
        raise ValueError(f'chunk_size = {chunk_size!r}: must be an integer of at least 1')
    counted = torch.ones_like(index, dtype=torch.bool) if mask is None else mask != 0
    taken, head = index[counted], Head(scale, softcap, temperature, rounded)
    flat = hidden if state is not None else hidden.flatten(0, 1)
    of_token = counted.flatten().nonzero().squeeze(1) if state is None else state[counted]  # (N, )
    of_counted = None if rules is None else rules.of(counted, temperature)
    back = None  # (N, ): which of the computed distributions is that of each token
    if state is not None and kept is None and (of_counted is None or of_counted.same_for_all):
        of_token, back = of_token.unique(return_inverse=True)
    read = flat.index_select(0, of_token)  # (N, H), or (M, H) for states; the backward of [] would sort
    if taken.numel() and not 0 <= taken.min() <= taken.max() < len(weight):
        raise ValueError(
            f'index from {taken.min()} to {taken.max()}: must be tokens from 0 to V - 1 = {len(weight) - 1}'
        )
    if kept is None:
        if of_counted is not None and of_counted.kept_bits is not None:
            _check_taken_bits(of_counted.kept_bits, taken)
        args = (read, weight, bias), (head, of_counted, chunk_size or TOKENS, return_entropy, return_squares)
        if back is None:
            logp, *others = _TiledLogProb.apply(*args[0], taken, None, *args[1])  # (N, ) each
        else:
            order = back.argsort(stable=True)
            logp, *others = _TiledLogProb.apply(*args[0], taken[order], back[order], *args[1])  # (N, ), (M, )
            logp, others = logp[order.argsort()], [None if x is None else x[back] for x in others]
    else:
        chosen = kept[counted]  # (N, K)
        if not (chosen == taken.unsqueeze(-1)).any(-1).all():
            raise ValueError('kept: must contain the sampled token of each position that the mask counts')
        if chosen.numel() and not -1 <= chosen.min() <= chosen.max() < len(weight):
            raise ValueError(f'kept from {chosen.min()} to {chosen.max()}: must be tokens, or -1 for padding')
        size = chunk_size or max(1, TOKENS * tile_width(weight) // max(chosen.shape[-1] * hidden.shape[-1], 1))
        logp, *others = KeptLogProb.apply(read, weight, bias, taken, chosen, head, of_counted, size)

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


def _check(
        hidden: Tensor, weight: Tensor, index: Tensor, mask: Optional[Tensor], bias: Optional[Tensor],
        kept: Optional[Tensor], rules: Optional[TokenRules], state: Optional[Tensor]
) -> None:
    check_leading('hidden', hidden, '(B, S, H)' if state is None else '(M, H)')
    check_leading('weight', weight, '(V, H)')
    if state is not None:
        if not isinstance(state, Tensor) or state.dim() != 2 or state.dtype != torch.long:
            raise ValueError(f'state of {getattr(state, "dtype", type(state).__name__)}: must be int64 of shape (B, S)')
        if state.numel() and not 0 <= state.min() <= state.max() < len(hidden):
            raise ValueError(
                f'state from {state.min()} to {state.max()}: must be states from 0 to M - 1 = {len(hidden) - 1}'
            )
    lead, vocabulary = tuple((hidden if state is None else state).shape[:2]), len(weight)
    if weight.shape[1] != hidden.shape[-1] or weight.dtype != hidden.dtype:
        raise ValueError(
            f'weight {tuple(weight.shape)} of {weight.dtype}: must be {hidden.dtype} of shape '
            f'(V, H = {hidden.shape[-1]})'
        )
    check_tensor('index', index, lead, '(B, S)', 'int64')
    check_tensor('mask', mask, lead, '(B, S)', 'numbers', optional=True)
    check_tensor('bias', bias, (vocabulary, ), '(V, )', optional=True)
    if bias is not None and bias.dtype != hidden.dtype:
        raise ValueError(f'bias of {bias.dtype}: must be {hidden.dtype}, the type of hidden')
    if kept is not None and (kept.dim() != 3 or tuple(kept.shape[:2]) != lead or kept.dtype != torch.long):
        raise ValueError(f'kept {tuple(kept.shape)} of {kept.dtype}: must be int64 of shape (B, S, K), (B, S) = {lead}')
    if rules is None:
        return
    check_number('rules.penalty', rules.penalty, open_low=True)
    check_tensor('rules.bias', rules.bias, (vocabulary, ), '(V, )', optional=True)
    check_tensor('rules.first_seen', rules.first_seen, (lead[0], vocabulary), '(B, V)', 'numbers', optional=True)
    bits = rules.kept_bits
    if bits is not None and (kept is not None or bits.dtype != torch.uint8 or tuple(bits.shape[:-1]) != lead
                             or 8 * bits.shape[-1] < vocabulary):
        raise ValueError(
            f'rules.kept_bits {tuple(bits.shape)} of {bits.dtype}: must be uint8 of shape (B, S, W), (B, S) = {lead}, '
            f'with 8 W of at least V = {vocabulary}, and without kept'
        )


def _check_taken_bits(bits: Tensor, taken: Tensor) -> None:
    of_taken = bits.gather(1, (taken // 8).unsqueeze(1)).squeeze(1) >> (taken % 8).to(torch.uint8)
    if not (of_taken & 1).all():
        raise ValueError('rules.kept_bits: must contain the sampled token of each position that the mask counts')
