from typing import List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from ding_grpo.rl_utils.check import check_leading, check_number, check_ranges, check_tensor

from .kept_log_prob import KeptLogProb
from .tiled_log_prob import TiledLogProb
from .tiles import TOKENS, Head, tile_width
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
        state: Optional[Tensor] = None
) -> Union[Tensor, Tuple[Tensor, ...]]:
    """
    Overview:
        Log-probabilities of the sampled tokens directly from hidden states and the output matrix. Only the logits of \
        some tokens over a part of the vocabulary are in memory at a time. Backward computes them again. It cannot be \
        differentiated twice; for second derivatives use ``efficient_method`` on logits. The logits are \
        ``softcap * tanh(scale * (hidden weight^T + bias) / softcap) / temperature``, without the tanh if ``softcap`` \
        is None. ``scale`` is Cohere's ``logit_scale`` or the inverse of Granite's ``logits_scaling``; ``softcap`` is \
        Gemma's ``final_logit_softcapping``.
    Arguments:
        - hidden (:obj:`torch.FloatTensor`): Hidden states that predict the sampled tokens, of any float type. Half \
            types are multiplied in their own type and normalised in float32.
        - weight, bias (:obj:`torch.FloatTensor`): Output matrix and bias, of the type of ``hidden``.
        - mask (:obj:`Optional[torch.Tensor]`): Where it is 0, nothing is computed and the results are 0.
        - chunk_size (:obj:`Optional[int]`): Tokens at a time. None: 2048; with ``kept`` those of 2^21 copied numbers.
        - kept (:obj:`Optional[torch.LongTensor]`): The tokens that a sampler kept for each token, each once, padded \
            with -1. The distribution is over these, which must include the sampled token.
        - rounded (:obj:`bool`): Whether the factors of all matrix products are rounded to bfloat16, with sums in \
            float32. Faster on a GPU.
        - rules (:obj:`Optional[TokenRules]`): What the sampler did to the logits before the division by the \
            temperature. Its ``kept_bits`` and ``kept`` exclude each other.
        - state (:obj:`Optional[torch.LongTensor]`): Which hidden state predicts each token. A state that predicts \
            several tokens is multiplied once, except with ``kept`` and with rules that differ between tokens. Where \
            the mask is 0 it is not read.
    Returns:
        - logp, entropy (:obj:`torch.FloatTensor`): In nats, float32 or wider, differentiable.
        - squares (:obj:`torch.FloatTensor`): Sums of squared probabilities, without a gradient.
    Shapes:
        - hidden, weight, bias: :math:`(B, S, H)`, or :math:`(M, H)` with ``state``; :math:`(V, H)`; :math:`(V, )`
        - index, state, mask, logp, entropy, squares: :math:`(B, S)`; ``kept`` :math:`(B, S, K)`
    """
    _check(hidden, weight, index, mask, bias, kept, rules, state)
    _check_options(temperature, scale, softcap, chunk_size)
    counted = torch.ones_like(index, dtype=torch.bool) if mask is None else mask != 0
    place = counted.flatten().nonzero().squeeze(1)  # (N, ); a GPU is waited for once, not once for each masked index
    of_token = place if state is None else state.flatten()[place]
    states = hidden.flatten(0, 1) if state is None else hidden
    kept = None if kept is None else kept.flatten(0, 1)[place]
    rules = None if rules is None else rules.of(counted, temperature)
    tokens = _Tokens(states, of_token, index.flatten()[place], kept, rules, shared=state is not None)
    _check_tokens(tokens, len(weight))
    find, head = _over_vocabulary if kept is None else _over_kept, Head(scale, softcap, temperature, rounded)
    found = find(tokens, weight, bias, head, chunk_size, return_entropy, return_squares)
    of_all = [x.new_zeros(index.shape).masked_scatter(counted, x) for x in found]
    return tuple(of_all) if len(of_all) > 1 else of_all[0]


class _Tokens(NamedTuple):
    """The N tokens that count, and the hidden states that predict them."""
    hidden: Tensor  # (M, H)
    of_token: Tensor  # (N, ) in 0 .. M - 1
    taken: Tensor  # (N, )
    kept: Optional[Tensor]  # (N, K)
    rules: Optional[CountedRules]
    shared: bool  # whether a state may predict several tokens


def _over_vocabulary(
        tokens: _Tokens, weight: Tensor, bias: Optional[Tensor], head: Head, chunk_size: Optional[int],
        return_entropy: bool, return_squares: bool
) -> List[Tensor]:
    hidden, of_token, taken, _, rules, shared = tokens
    given = head, rules, chunk_size or TOKENS, return_entropy, return_squares
    if not shared or rules is not None and not rules.same_for_all:
        read = hidden.index_select(0, of_token)  # (N, H); the backward of [] would sort
        found = TiledLogProb.apply(read, weight, bias, taken, None, *given)  # (N, ) each
    else:
        of_token, back = of_token.unique(return_inverse=True)  # (M, ); (N, ): which of them is that of each token
        read, order = hidden.index_select(0, of_token), back.argsort(stable=True)
        logp, *others = TiledLogProb.apply(read, weight, bias, taken[order], back[order], *given)  # (N, ), (M, )
        found = logp[order.argsort()], *(None if x is None else x[back] for x in others)
    return [x for x in found if x is not None]


def _over_kept(
        tokens: _Tokens, weight: Tensor, bias: Optional[Tensor], head: Head, chunk_size: Optional[int],
        return_entropy: bool, return_squares: bool
) -> List[Tensor]:
    hidden, of_token, taken, kept, rules, _ = tokens
    numbers = TOKENS * tile_width(weight)  # copied at a time
    size = chunk_size or max(1, numbers // max(kept.shape[-1] * hidden.shape[-1], 1))
    found = KeptLogProb.apply(hidden.index_select(0, of_token), weight, bias, taken, kept, head, rules, size)
    return [x for x, returned in zip(found, (True, return_entropy, return_squares)) if returned]


def _check(
        hidden: Tensor, weight: Tensor, index: Tensor, mask: Optional[Tensor], bias: Optional[Tensor],
        kept: Optional[Tensor], rules: Optional[TokenRules], state: Optional[Tensor]
) -> None:
    check_leading('hidden', hidden, '(B, S, H)' if state is None else '(M, H)')
    check_leading('weight', weight, '(V, H)')
    if state is not None:
        if not isinstance(state, Tensor) or state.dim() != 2 or state.dtype != torch.long:
            raise ValueError(f'state of {getattr(state, "dtype", type(state).__name__)}: must be int64 of shape (B, S)')
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


def _check_options(temperature: float, scale: float, softcap: Optional[float], chunk_size: Optional[int]) -> None:
    check_number('temperature', temperature, open_low=True)
    check_number('scale', scale, open_low=True)
    if softcap is not None:
        check_number('softcap', softcap, open_low=True)
    if chunk_size is not None and not (isinstance(chunk_size, int) and chunk_size >= 1):
        raise ValueError(f'chunk_size = {chunk_size!r}: must be an integer of at least 1')


def _check_tokens(tokens: _Tokens, vocabulary: int) -> None:
    """Check the N tokens that count against the hidden states, the vocabulary, and what the sampler kept."""
    hidden, state, taken, kept, rules, _ = tokens
    check_ranges(
        ('state', state, 0, len(hidden), f'states from 0 to M - 1 = {len(hidden) - 1}'),
        ('index', taken, 0, vocabulary, f'tokens from 0 to V - 1 = {vocabulary - 1}'),
    )
    if kept is not None:
        if not (kept == taken.unsqueeze(-1)).any(-1).all():
            raise ValueError('kept: must contain the sampled token of each position that the mask counts')
        check_ranges(('kept', kept, -1, vocabulary, 'tokens, or -1 for padding'))
    elif rules is not None and rules.kept_bits is not None:
        of_taken = rules.kept_bits.gather(1, (taken // 8).unsqueeze(1)).squeeze(1) >> (taken % 8).to(torch.uint8)
        if not (of_taken & 1).all():
            raise ValueError('rules.kept_bits: must contain the sampled token of each position that the mask counts')
