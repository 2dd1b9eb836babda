"""
On-policy distillation: how far the distribution of each token is from a teacher's, on rows of the student. With the
student's probabilities p, the teacher's q and u = q / p, each divergence is D = E_p[f(u)]. Its gradient is
E_p[h(u) grad log p] with h = f - u f', up to a constant:

    reverse_kl   KL(p || q)                        h = -log u
    forward_kl   KL(q || p)                        h = 1 - u
    jsd          a KL(q || m) + (1 - a) KL(p || m) h = -(1 - a) log(a u + 1 - a),    m = a q + (1 - a) p

The last is the generalised Jensen-Shannon divergence of https://arxiv.org/abs/2306.13649 with a = ``mix``.
``linear_divergence`` sums over the vocabulary. ``sampled_divergence`` estimates the sum from the sampled token.
"""
import math
from collections import namedtuple
from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .check import check_choice, check_floats, check_leading, check_number, check_tensor, wide_type
from .kl import bounded, kl_estimate
from .reduce import masked_mean, reduce_loss
from .log_probs.tiles import TOKENS, Head, Tile, slices, vocabulary_slices, without_autocast

DIVERGENCES = ('reverse_kl', 'forward_kl', 'jsd')

distillation_data = namedtuple('distillation_data', ['divergence', 'kl', 'weight'])
distillation_data.__doc__ = """Inputs of ``distillation_error``, (B, S) each; ``divergence`` and ``kl`` are those of
``linear_divergence`` or ``sampled_divergence``."""
distillation_info = namedtuple('distillation_info', ['teacher_kl'])
distillation_info.__doc__ = 'Mean of KL(student || teacher) over tokens that count, in nats.'


def distillation_error(
        data: distillation_data,
        reduction: str = 'sequence',
        max_length: Optional[int] = None,
        num_tokens: Optional[float] = None,
) -> Tuple[Tensor, distillation_info]:
    """The loss of a batch from the divergences of its tokens; the options are those of ``reduce_loss``."""
    loss = reduce_loss(data.divergence, data.weight, reduction, max_length, num_tokens)
    return loss, distillation_info(masked_mean(data.kl.detach(), data.weight).item())


class LinearOutput(NamedTuple):
    """Hidden states and the output layer that turns them into logits; see ``linear_log_prob`` for the formula."""
    hidden: Tensor  # (B, S, H)
    weight: Tensor  # (V, H)
    bias: Optional[Tensor] = None  # (V, )
    scale: float = 1.0
    softcap: Optional[float] = None
    rounded: bool = False


def linear_divergence(
        student: LinearOutput,
        teacher: LinearOutput,
        mask: Optional[Tensor] = None,
        divergence: str = 'reverse_kl',
        mix: float = 0.5,
        temperature: float = 1.0,
        chunk_size: Optional[int] = None,
) -> Tuple[Tensor, Tensor]:
    """
    Overview:
        Divergence of each token's distribution from the teacher's, summed over the vocabulary, directly from hidden \
        states. Only the logits of some tokens over a part of the vocabulary are in memory at a time. Backward \
        computes them again. It cannot be differentiated twice. The teacher gets no gradient. Log-probabilities below \
        -1000 count as -1000, so the result is finite where one of the two excludes a token.
    Arguments:
        - teacher (:obj:`LinearOutput`): The teacher, with the same tokens in the same order. Hidden size and type may \
            differ.
        - mask (:obj:`Optional[torch.Tensor]`): Where it is 0, nothing is computed and the results are 0.
        - mix (:obj:`float`): For ``jsd``: the teacher's share a of the mixture, in (0, 1).
        - temperature (:obj:`float`): Both logits are divided by it.
        - chunk_size (:obj:`Optional[int]`): Tokens at a time; None uses 2048.
    Returns:
        - divergence (:obj:`torch.FloatTensor`): In nats, float32 or wider, differentiable.
        - kl (:obj:`torch.FloatTensor`): KL(student || teacher) in nats, without a gradient.
    Shapes:
        - mask, divergence, kl: :math:`(B, S)`
    """
    _check_kind(divergence, mix)
    check_number('temperature', temperature, open_low=True)
    for name, output in (('student', student), ('teacher', teacher)):
        check_leading(f'{name}.hidden', output.hidden, '(B, S, H)')
        check_tensor(
            f'{name}.weight', output.weight, (len(student.weight), output.hidden.shape[-1]), f'(V, H) of {name}'
        )
        check_tensor(f'{name}.bias', output.bias, (len(student.weight), ), '(V, )', optional=True)
    lead = tuple(student.hidden.shape[:2])
    check_tensor('teacher.hidden', teacher.hidden, (*lead, teacher.hidden.shape[-1]), '(B, S, H)')
    check_tensor('mask', mask, lead, '(B, S)', 'numbers', optional=True)
    device = student.hidden.device
    counted = torch.ones(lead, dtype=torch.bool, device=device) if mask is None else mask != 0
    at = counted.flatten().nonzero().squeeze(1)  # (N, )
    tiles = [
        Tile(
            x.hidden.flatten(0, 1).index_select(0, at), x.weight, x.bias,
            Head(x.scale, x.softcap, temperature, x.rounded)
        ) for x in (student, teacher)
    ]
    own, other = tiles[0], Tile(*(x.detach() if isinstance(x, Tensor) else x for x in tiles[1]))
    found = _TiledDivergence.apply(*own[:3], *other[:3], (own.head, other.head), divergence, mix, chunk_size or TOKENS)
    return tuple(x.new_zeros(lead).masked_scatter(counted, x) for x in found)


def sampled_divergence(
        logp_new: Tensor,
        logp_old: Tensor,
        logp_teacher: Tensor,
        divergence: str = 'reverse_kl',
        mix: float = 0.5,
) -> Tuple[Tensor, Tensor]:
    """
    Overview:
        Estimates of the divergence from sampled tokens. The value is f(u), for the KLs plus a multiple of u - 1 that \
        makes it non-negative; its expectation is D. The gradient is r h(u) grad log p with the ratio r of the policy \
        to the one that sampled, whose expectation is the gradient of D. Differentiating the value would give another \
        gradient, see ``straight_through_kl``.
    Arguments:
        - logp_new, logp_old, logp_teacher (:obj:`torch.FloatTensor`): Log-probabilities of the sampled tokens under \
            the student, under the policy that sampled, and under the teacher.
        - mix (:obj:`float`): For ``jsd``: the teacher's share of the mixture, in (0, 1).
    Returns:
        - divergence (:obj:`torch.FloatTensor`): In nats, differentiable.
        - kl (:obj:`torch.FloatTensor`): The k3 estimate of KL(student || teacher), without a gradient.
    Shapes:
        All tensors have the same shape, usually :math:`(B, S)`.
    """
    _check_kind(divergence, mix)
    check_floats('logp_new', logp_new)
    for name, x in (('logp_old', logp_old), ('logp_teacher', logp_teacher)):
        check_tensor(name, x, tuple(logp_new.shape), 'that of logp_new')
    with torch.no_grad():
        log_u, r = bounded(logp_teacher - logp_new), bounded(logp_new - logp_old).exp()
        u = log_u.exp()
        if divergence == 'reverse_kl':
            value, h = u - 1 - log_u, -log_u
        elif divergence == 'forward_kl':
            value, h = u * log_u - u + 1, 1 - u
        else:
            log_m = torch.logaddexp(log_u + math.log(mix), torch.full_like(log_u, math.log1p(-mix)))  # of m / p
            value, h = mix * u * log_u - log_m.exp() * log_m, -(1 - mix) * log_m
        kl = kl_estimate(logp_new, logp_teacher, 'k3')
    return value + r * h * (logp_new - logp_new.detach()), kl


def _check_kind(divergence: str, mix: float) -> None:
    check_choice('divergence', divergence, DIVERGENCES)
    check_number('mix', mix, open_low=True)
    if not mix < 1:
        raise ValueError(f'mix = {mix!r}: must be below 1')


class _TiledDivergence(torch.autograd.Function):
    """Reads each tile twice in forward, once for the normalisers and once for the sums, and once in backward."""

    @staticmethod
    @without_autocast
    def forward(
            ctx: Any, hidden: Tensor, weight: Tensor, bias: Optional[Tensor], hidden_t: Tensor, weight_t: Tensor,
            bias_t: Optional[Tensor], heads: Tuple[Head, Head], kind: str, mix: float, tokens: int
    ) -> Tuple[Tensor, Tensor]:
        tiles = Tile(hidden, weight, bias, heads[0]), Tile(hidden_t, weight_t, bias_t, heads[1])
        wide = torch.promote_types(wide_type(hidden), wide_type(hidden_t))
        norms = [_normalisers(tile, tokens) for tile in tiles]  # 2 of (2, N)
        kl, of_own, of_other = (hidden.new_zeros(len(hidden), dtype=wide) for _ in range(3))
        for rows in slices(len(hidden), tokens):
            for columns in vocabulary_slices(weight):
                a, b = (_log_probs(*of, rows, columns)[0] for of in zip(tiles, norms))  # log p, log q
                p, q = a.exp(), None if kind == 'reverse_kl' else b.exp()
                if kind == 'jsd':
                    m = _mixture(p, q, mix)
                    of_own[rows] += (a - m).mul_(p).sum(-1)
                    of_other[rows] += m.neg_().add_(b).mul_(q).sum(-1)
                distance = a.sub_(b)  # log p - log q
                if kind == 'forward_kl':
                    of_other[rows] -= q.mul_(distance).sum(-1)
                kl[rows] += distance.mul_(p).sum(-1)
        # with the mean of h under p, which the gradient subtracts
        found, centre = dict(
            reverse_kl=(kl, kl),
            forward_kl=(of_other, torch.zeros_like(kl)),
            jsd=(mix * of_other + (1 - mix) * of_own, (1 - mix) * of_own)
        )[kind]
        ctx.save_for_backward(hidden, weight, bias, hidden_t, weight_t, bias_t, *norms, centre)
        ctx.options = heads, kind, mix, tokens
        ctx.mark_non_differentiable(kl := kl.clone())
        return found, kl

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, grad_found: Tensor, _: Tensor) -> Tuple[Optional[Tensor], ...]:
        heads, kind, mix, tokens = ctx.options
        *tensors, norm, norm_t, centre = ctx.saved_tensors
        tile, tile_t = Tile(*tensors[:3], heads[0]), Tile(*tensors[3:], heads[1])

        def grad_of(rows: slice, columns: slice) -> Tensor:
            a, slope = _log_probs(tile, norm, rows, columns)
            b, _ = _log_probs(tile_t, norm_t, rows, columns)
            p = a.exp()
            if kind == 'forward_kl':
                grad = p.sub_(b.exp_())
            else:
                h = a.sub_(b) if kind == 'reverse_kl' else a.sub_(_mixture(p, b.exp_(), mix)).mul_(1 - mix)
                grad = h.sub_(centre[rows, None]).mul_(p)
            grad = grad.mul_(grad_found[rows, None])
            return grad if slope is None else grad.mul_(slope)

        return (*tile.backward(grad_of, ctx.needs_input_grad[:3], tokens), *[None] * 7)


def _normalisers(tile: Tile, tokens: int) -> Tensor:
    """(2, N): the highest logit of each token, and the logarithm of the sum of exp(logit - highest)."""
    found = tile.hidden.new_empty(2, len(tile.hidden), dtype=wide_type(tile.hidden))
    for rows in slices(len(tile.hidden), tokens):
        logits = (tile.logits(rows, columns) for columns in vocabulary_slices(tile.weight))
        parts = torch.stack([_highest_and_sum(x) for x in logits])  # (tiles, 2, N)
        highest = parts[:, 0].amax(0)
        total = ((parts[:, 0] - highest).exp() * parts[:, 1]).sum(0)
        found[:, rows] = torch.stack([highest, total.log()])
    return found


def _highest_and_sum(x: Tensor) -> Tensor:
    highest = x.amax(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).min)  # not minus infinity
    return torch.stack([highest.squeeze(-1), x.sub_(highest).exp_().sum(-1)])


def _log_probs(tile: Tile, norm: Tensor, rows: slice, columns: slice) -> Tuple[Tensor, Any]:
    """Log-probabilities of a tile, and the derivative of its logits with respect to the product."""
    x, slope = tile.logits_and_slope(rows, columns)
    highest, log_total = norm[:, rows, None]
    # two differences: at low temperatures the sum is in the thousands and loses precision
    return x.sub_(highest).sub_(log_total).clamp_(min=-1000), slope


def _mixture(p: Tensor, q: Tensor, mix: float) -> Tensor:
    """log(mix q + (1 - mix) p), at least -1000."""
    return (mix * q).add_(p, alpha=1 - mix).log_().clamp_(min=-1000)
