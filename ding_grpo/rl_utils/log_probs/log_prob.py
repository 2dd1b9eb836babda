from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from torch import Tensor

from ding_grpo.rl_utils.check import check_leading, check_ranges, check_tensor, wide_type, widened

LogProbFunction = Callable[[Tensor, Tensor], Tensor]

CHUNK_ELEMENTS = 2 ** 17  # logits per chunk: 512 KiB in float32, about the cache of a core
CHUNK_ELEMENTS_ON_GPU = 2 ** 25  # 128 MiB: few launches; chosen by count, not measured


def naive_method(logits: Tensor, index: Tensor) -> Tensor:
    """
    Overview:
        Log-probabilities of the sampled tokens by a log-softmax over the full vocabulary.
    Arguments:
        - logits (:obj:`torch.FloatTensor`): Logits, of any float type; half types are computed in float32.
        - index (:obj:`torch.LongTensor`): The sampled tokens.
    Shapes:
        - logits (:obj:`torch.FloatTensor`): :math:`(B, S, V)` or :math:`(S, V)`
        - index (:obj:`torch.LongTensor`): :math:`(B, S)` or :math:`(S, )`
        - logp (:obj:`torch.FloatTensor`): Shape of ``index``
    """
    _check(logits, index)
    logp = torch.log_softmax(widened(logits), dim=-1)  # (B, S, V)
    return logp.gather(-1, index.unsqueeze(-1)).squeeze(-1)  # (B, S)


def efficient_method(logits: Tensor, index: Tensor) -> Tensor:
    """The same as ``naive_method`` with a custom backward, for logits in any layout. Forward and backward process the
    logits of a few tokens at a time. Beyond the logits and the returned gradient, memory is needed only for those
    tokens, which fit the processor's cache. With ``create_graph=True`` it can be differentiated twice; the backward
    then creates tensors as large as the logits."""
    _check(logits, index)
    return _ChunkedLogProb.apply(logits, index)


class _ChunkedLogProb(torch.autograd.Function):

    @staticmethod
    def forward(ctx: Any, logits: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(logits, index)
        logp = logits.new_empty(index.shape, dtype=wide_type(logits))
        for x, taken, out in _chunks(logits, index, logp):
            out.copy_(torch.log_softmax(x.to(out.dtype), dim=-1).gather(-1, taken.unsqueeze(-1)).squeeze(-1))
        return logp

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, None]:
        logits, index = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            return _differentiable_gradient(logits, index, grad), None
        grad_logits = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
        padded = bool((grad == 0).any())  # the gradient of padding is 0, whatever its logits are, even NaN
        for x, taken, g, out in _chunks(logits, index, grad, grad_logits):
            # d log p(taken) / d logits = onehot(taken) - softmax
            chunk = torch.softmax(x.to(g.dtype), dim=-1).mul_(-g.unsqueeze(-1))
            chunk.scatter_add_(-1, taken.unsqueeze(-1), g.unsqueeze(-1))
            if padded:
                chunk.masked_fill_(g.unsqueeze(-1) == 0, 0)
            out.copy_(chunk)
        return grad_logits, None


def _differentiable_gradient(logits: Tensor, index: Tensor, grad: Tensor) -> Tensor:
    """The gradient as the backward above computes it, by operations that can be differentiated again."""
    # Padding without a gradient may contain NaN. Other tokens with the gradient 0 have a second derivative.
    broken = (grad == 0) & ~torch.isfinite(torch.logsumexp(logits.detach(), -1))
    probability = torch.softmax(logits.masked_fill(broken.unsqueeze(-1), 0).to(grad.dtype), dim=-1)
    taken = index.unsqueeze(-1)
    return (-grad.unsqueeze(-1) * probability).scatter_add(-1, taken, grad.unsqueeze(-1)).to(logits.dtype)


def _chunks(logits: Tensor, *others: Tensor) -> Iterator[Tuple[Tensor, ...]]:
    """Views of a few tokens each, of the logits (..., V) and of tensors with the same leading shape."""
    numbers = CHUNK_ELEMENTS if logits.device.type == 'cpu' else CHUNK_ELEMENTS_ON_GPU
    tokens = max(1, numbers // max(logits.shape[-1], 1))
    pages = zip(logits, *others) if logits.dim() == 3 else [(logits, *others)]
    for page in pages:
        for start in range(0, page[0].shape[0], tokens):
            yield tuple(x[start:start + tokens] for x in page)


def _check(logits: Tensor, index: Tensor) -> None:
    check_leading('logits', logits, '(B, S, V) or (S, V)')
    check_tensor('index', index, tuple(logits.shape[:-1]), 'that of logits without the last', 'int64')
    check_ranges(('index', index, 0, logits.shape[-1], f'from 0 to V - 1 = {logits.shape[-1] - 1}'))


def less_efficient_method(logits: Tensor, index: Tensor) -> Tensor:
    """The same as ``naive_method`` through ``torch.distributions.Categorical``."""
    _check(logits, index)
    logits = widened(logits)
    # ``Categorical`` subtracts a log-sum-exp, whose rounding error grows with its size.
    logits = logits - logits.detach().amax(-1, keepdim=True)
    return torch.distributions.Categorical(logits=logits, validate_args=False).log_prob(index)


def log_probs(
        logits: Dict[str, Optional[Tensor]], action: Tensor, weight: Optional[Tensor], log_prob_fn: LogProbFunction
) -> List[Optional[Tensor]]:
    """Log-probabilities (B, S) of the same tokens under several policies, from ``logits`` (B, S, V) by name, for
    messages. The first belong to the trained policy; the others may be None, and so is their result. Where ``weight``
    is 0, ``action`` may contain any value, such as the common -100."""
    (first, new), *others = logits.items()
    check_leading(first, new, '(B, S, V) or (B, N)')
    for name, x in others:
        check_tensor(name, x, tuple(new.shape), f'that of {first}', optional=True)
    check_tensor('action', action, tuple(new.shape[:-1]), f'that of {first} without the last', 'int64')
    check_tensor('weight', weight, tuple(action.shape), 'that of action', 'numbers', optional=True)
    if weight is not None:
        outside = (action < 0) | (action >= new.shape[-1])
        action = action.masked_fill(outside & (weight == 0), 0)
    check_ranges(('action', action, 0, new.shape[-1], f'from 0 to {new.shape[-1] - 1} on tokens that count'))
    return [None if x is None else log_prob_fn(x, action) for x in logits.values()]


def entropy(logits: Tensor) -> Tensor:
    """Entropy of each token's distribution in nats, (B, S, V) -> (B, S) or (S, V) -> (S, ). It is differentiable, also
    where a probability is 0 because a logit is minus infinity or the probability underflows."""
    check_leading('logits', logits, '(B, S, V) or (S, V)')
    logp = torch.log_softmax(widened(logits), dim=-1)  # (B, S, V)
    return -(logp.exp() * logp.masked_fill(logp == float('-inf'), 0)).sum(-1)


@torch.no_grad()
def sum_of_squares(logits: Tensor) -> Tensor:
    """Sum of the squared probabilities of each token's distribution, (B, S, V) -> (B, S) or (S, V) -> (S, ), without a
    gradient."""
    check_leading('logits', logits, '(B, S, V) or (S, V)')
    return torch.softmax(widened(logits), dim=-1).square().sum(-1)
