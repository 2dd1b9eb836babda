from typing import Any, Iterator, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .check import check_tensor

CHUNK_ELEMENTS = 2 ** 23  # logits that exist at a time: 32 MiB in float32


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
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """
    Overview:
        Log-probability of the taken tokens straight from hidden states and the output matrix. The logits of a few \
        tokens at a time exist in forward and, computed again, in backward; never those of all.
        The logits are ``softcap * tanh(scale * (hidden weight^T + bias) / softcap) / temperature``, without the tanh \
        if ``softcap`` is None: ``scale`` is Cohere's ``logit_scale`` or one over Granite's ``logits_scaling``, \
        ``softcap`` Gemma's ``final_logit_softcapping``.
    Arguments:
        - hidden (:obj:`torch.FloatTensor`): Hidden states that predict the taken tokens, of any float type; half \
            types are multiplied as they are and normalised in float32.
        - weight (:obj:`torch.FloatTensor`): Output matrix.
        - index (:obj:`torch.LongTensor`): The taken tokens.
        - mask (:obj:`Optional[torch.Tensor]`): Where it is 0 nothing is computed, and the results are 0.
        - bias (:obj:`Optional[torch.FloatTensor]`): Output bias.
        - temperature (:obj:`float`): Sampling temperature.
        - chunk_size (:obj:`Optional[int]`): Tokens at a time; None takes as many as 2^23 logits are.
        - kept (:obj:`Optional[torch.LongTensor]`): The tokens that a sampler kept for each token, -1 for none; the \
            distribution is over these. The taken token must be among them.
        - scale (:obj:`float`): Factor of the logits.
        - softcap (:obj:`Optional[float]`): Bound of the logits.
        - return_entropy (:obj:`bool`): Whether to return the distributions' entropies too.
    Returns:
        - logp (:obj:`torch.FloatTensor`): In nats, float32 or wider.
        - entropy (:obj:`torch.FloatTensor`): In nats, differentiable; only with ``return_entropy``.
    Shapes:
        - hidden (:obj:`torch.FloatTensor`): :math:`(B, S, H)`
        - weight (:obj:`torch.FloatTensor`): :math:`(V, H)`
        - index (:obj:`torch.LongTensor`): :math:`(B, S)`
        - mask (:obj:`torch.Tensor`): :math:`(B, S)`
        - bias (:obj:`torch.FloatTensor`): :math:`(V, )`
        - kept (:obj:`torch.LongTensor`): :math:`(B, S, K)`
        - logp (:obj:`torch.FloatTensor`): :math:`(B, S)`
        - entropy (:obj:`torch.FloatTensor`): :math:`(B, S)`
    Raises:
        - ValueError: If a shape, a type or an option is wrong.
    """
    _check(hidden, weight, index, mask, bias, kept)
    if temperature <= 0 or (softcap is not None and softcap <= 0):
        raise ValueError(f'temperature = {temperature}, softcap = {softcap}: must be positive')
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f'chunk_size = {chunk_size}: must be at least 1')
    width = weight.shape[0] if kept is None else kept.shape[-1] * hidden.shape[-1]  # with kept, their rows are copied
    head = _Head(scale, softcap, temperature, chunk_size or max(1, CHUNK_ELEMENTS // max(width, 1)))
    counted = torch.ones_like(index, dtype=torch.bool) if mask is None else mask != 0
    taken, chosen = index[counted], None if kept is None else kept[counted]  # (N, ), (N, K)
    if chosen is not None and not (chosen == taken.unsqueeze(-1)).any(-1).all():
        raise ValueError('kept: must contain the taken token of each position that the mask counts')
    logp, entropy = _LinearLogProb.apply(hidden[counted], weight, bias, taken, chosen, head)  # (N, ) each

    def place(values: Tensor) -> Tensor:
        return values.new_zeros(index.shape).masked_scatter(counted, values)

    return (place(logp), place(entropy)) if return_entropy else place(logp)


class _Head(NamedTuple):
    scale: float
    softcap: Optional[float]
    temperature: float
    chunk_size: int

    def logits(self, z: Tensor) -> Tensor:
        z = z.to(torch.promote_types(z.dtype, torch.float32)) * self.scale
        return (z if self.softcap is None else self.softcap * torch.tanh(z / self.softcap)) / self.temperature

    def backward(self, grad: Tensor, x: Tensor) -> Tensor:
        """Gradient of the product from that of the logits x, in place."""
        if self.softcap is not None:
            grad.mul_(1 - (x.masked_fill(x == float('-inf'), 0) * (self.temperature / self.softcap)) ** 2)
        return grad.mul_(self.scale / self.temperature)


class _LinearLogProb(torch.autograd.Function):

    @staticmethod
    def forward(
            ctx: Any, hidden: Tensor, weight: Tensor, bias: Optional[Tensor], index: Tensor, kept: Optional[Tensor],
            head: _Head
    ) -> Tuple[Tensor, Tensor]:
        ctx.save_for_backward(hidden, weight, bias, index, kept)
        ctx.head = head
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        logp, entropy = (hidden.new_empty(len(hidden), dtype=dtype) for _ in range(2))
        for rows in _chunks(len(hidden), head.chunk_size):
            x, taken = _chunk_logits(hidden[rows], weight, bias, index[rows], _at(kept, rows), head)
            lse = torch.logsumexp(x, dim=-1)
            logp[rows] = x.gather(-1, taken).squeeze(-1) - lse
            # H = lse - E[x]; probability 0 adds nothing, though its logit is minus infinity
            mean = (x - lse.unsqueeze(-1)).exp_().mul_(x.masked_fill(x == float('-inf'), 0)).sum(-1)
            entropy[rows] = lse - mean
        return logp, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logp: Tensor, grad_entropy: Tensor) -> Tuple[Optional[Tensor], ...]:
        hidden, weight, bias, index, kept = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        wide = torch.promote_types(weight.dtype, torch.float32)
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros(weight.shape, dtype=wide, device=weight.device) if needs_weight else None
        grad_bias = torch.zeros(weight.shape[:1], dtype=wide, device=weight.device) if needs_bias else None
        for rows in _chunks(len(hidden), ctx.head.chunk_size):
            h, ids = hidden[rows], _at(kept, rows)
            x, taken = _chunk_logits(h, weight, bias, index[rows], ids, ctx.head)
            grad = _logit_gradient(x, taken, grad_logp[rows, None], grad_entropy[rows, None])
            grad = ctx.head.backward(grad, x).to(hidden.dtype)
            if ids is None:
                if needs_hidden:
                    torch.mm(grad, weight, out=grad_hidden[rows])
                if needs_weight:
                    _add_product(grad_weight, grad, h)
                if needs_bias:
                    grad_bias += grad.sum(0)
                continue
            flat = ids.clamp(min=0).flatten()  # (N K, )
            if needs_hidden:
                grad_hidden[rows] = torch.bmm(grad.unsqueeze(1), weight[flat].view(*ids.shape, -1)).squeeze(1)
            if needs_weight:
                outer = grad.unsqueeze(-1) * h.unsqueeze(1)  # (N, K, H)
                grad_weight.index_add_(0, flat, outer.flatten(0, 1).to(wide))
            if needs_bias:
                grad_bias.index_add_(0, flat, grad.flatten().to(wide))
        return (
            grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype), None, None, None
        )


def _chunk_logits(
        hidden: Tensor, weight: Tensor, bias: Optional[Tensor], index: Tensor, kept: Optional[Tensor], head: _Head
) -> Tuple[Tensor, Tensor]:
    """Logits (N, V), or (N, K) over the kept tokens, and where the taken token stands in them, (N, 1)."""
    if kept is None:
        z = hidden @ weight.T if bias is None else torch.addmm(bias, hidden, weight.T)
        return head.logits(z), index.unsqueeze(-1)
    ids = kept.clamp(min=0)
    z = torch.bmm(weight[ids.flatten()].view(*ids.shape, -1), hidden.unsqueeze(-1)).squeeze(-1)
    if bias is not None:
        z = z + bias[ids]
    taken = (kept == index.unsqueeze(-1)).to(torch.uint8).argmax(-1, keepdim=True)
    return head.logits(z).masked_fill(kept < 0, float('-inf')), taken


def _logit_gradient(x: Tensor, taken: Tensor, grad_logp: Tensor, grad_entropy: Tensor) -> Tensor:
    """d log p(taken) / dx = onehot - p and dH / dx = -p (log p + H), weighted by the gradients from above."""
    logp = torch.log_softmax(x, dim=-1)
    p = logp.exp()
    if grad_entropy.any():
        finite = logp.masked_fill(logp == float('-inf'), 0)
        entropy = -(p * finite).sum(-1, keepdim=True)
        factor = finite.add_(entropy).mul_(-grad_entropy).sub_(grad_logp)
        grad = factor.mul_(p)
    else:
        grad = p.mul_(-grad_logp)
    return grad.scatter_add_(-1, taken, grad_logp.to(grad.dtype))


def _add_product(total: Tensor, grad: Tensor, hidden: Tensor) -> None:
    if total.dtype == grad.dtype:
        total.addmm_(grad.T, hidden)
    else:  # half types: the product is one, the sum over chunks float32
        total += grad.T @ hidden


def _chunks(length: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def _at(x: Optional[Tensor], rows: slice) -> Optional[Tensor]:
    return None if x is None else x[rows]


def _check(
        hidden: Tensor, weight: Tensor, index: Tensor, mask: Optional[Tensor], bias: Optional[Tensor],
        kept: Optional[Tensor]
) -> None:
    if hidden.dim() != 3 or not hidden.is_floating_point():
        raise ValueError(f'hidden {tuple(hidden.shape)} of {hidden.dtype}: must be floats of shape (B, S, H)')
    lead, vocabulary = tuple(hidden.shape[:2]), weight.shape[0] if weight.dim() else 0
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[2] or weight.dtype != hidden.dtype:
        raise ValueError(
            f'weight {tuple(weight.shape)} of {weight.dtype}: must be {hidden.dtype} of shape '
            f'(V, H = {hidden.shape[2]})'
        )
    check_tensor('index', index, lead, '(B, S)', 'int64')
    check_tensor('mask', mask, lead, '(B, S)', 'numbers')
    check_tensor('bias', bias, (vocabulary, ), '(V, )')
    if kept is not None and (kept.dim() != 3 or tuple(kept.shape[:2]) != lead or kept.dtype != torch.long):
        raise ValueError(f'kept {tuple(kept.shape)} of {kept.dtype}: must be int64 of shape (B, S, K), (B, S) = {lead}')
