from typing import Optional

from torch import Tensor

from .check import check_choice, check_leading, check_tensor, widened

REDUCTIONS = ('sequence', 'token', 'constant', 'sum')


def masked_mean(x: Tensor, weight: Tensor) -> Tensor:
    """Mean of x (B, S) over all tokens that count, sum(x * weight) / sum(weight); 0 if no token counts. Any value is
    allowed where ``weight`` is 0, even NaN."""
    return masked(x, weight).sum() / count_of(weight)


def row_mean(x: Tensor, weight: Tensor) -> Tensor:
    """Mean (B, ) of each row of x (B, S) over its tokens that count; 0 for a row in which no token counts."""
    return masked(x, weight).sum(dim=1) / count_of(weight, 1)


def sequence_mean(x: Tensor, weight: Tensor) -> Tensor:
    """Mean over rows of ``row_mean`` (equation 3 of https://arxiv.org/abs/2402.03300); 0 if there are no rows."""
    return row_mean(x, weight).sum() / max(len(x), 1)


def reduce_loss(
        loss: Tensor,
        weight: Tensor,
        reduction: str,
        max_length: Optional[int] = None,
        num_tokens: Optional[float] = None,
) -> Tensor:
    """
    Overview:
        Reduce per-token losses to the loss of a batch. With per-token loss l, weight w and B rows:

        - ``sequence``: mean over rows of sum(l w) / sum(w) of the row, GRPO.
        - ``token``: sum(l w) / sum(w) over the batch, DAPO; sum(l w) / ``num_tokens`` if that is given.
        - ``constant``: sum(l w) / (B ``max_length``), Dr. GRPO.
        - ``sum``: mean over rows of sum(l w) of the row, LUSPO.

        To accumulate gradients over micro-batches, pass the ``num_tokens`` of the whole batch for ``token``. For the \
        other reductions, multiply the loss of each micro-batch by its share of the rows. The losses of the \
        micro-batches then sum to the loss of the batch.
    Arguments:
        - loss (:obj:`torch.FloatTensor`): Per-token losses. Any value is allowed where ``weight`` is 0.
        - max_length (:obj:`Optional[int]`): Maximum completion length in tokens, for ``constant``.
        - num_tokens (:obj:`Optional[float]`): Number of tokens that count in the whole batch, for ``token``.
    Shapes:
        - loss, weight (:obj:`torch.FloatTensor`): :math:`(B, S)`
    """
    check_choice('reduction', reduction, REDUCTIONS)
    if reduction == 'constant' and (max_length is None or max_length <= 0):
        raise ValueError(f"max_length = {max_length}: reduction 'constant' divides by it; must be positive")
    if num_tokens is not None and (reduction != 'token' or not num_tokens >= 0):
        raise ValueError(f"num_tokens = {num_tokens}: must not be negative, and needs reduction 'token'")
    if num_tokens == 0 and (weight != 0).any():
        raise ValueError('num_tokens = 0: must be positive, since some tokens count')
    if reduction == 'sequence':
        return sequence_mean(loss, weight)
    if reduction == 'token' and num_tokens is None:
        return masked_mean(loss, weight)
    divisor = dict(
        token=num_tokens or 1, constant=max(len(loss), 1) * (max_length or 1), sum=max(len(loss), 1)
    )[reduction]
    return masked(loss, weight).sum() / divisor


def masked(x: Tensor, weight: Tensor) -> Tensor:
    """x * weight in float32 or wider, and 0 where the weight is 0 even if x is NaN there."""
    check_leading('the values', x, '(B, S)')
    check_tensor('weight', weight, tuple(x.shape), '(B, S)', 'numbers')
    return (widened(x) * weight).masked_fill(weight == 0, 0)


def count_of(weight: Tensor, dim: Optional[int] = None) -> Tensor:
    """Sum of weights, in float32 or wider; 1 if it is 0."""
    count = widened(weight).sum() if dim is None else widened(weight).sum(dim=dim)
    return count.masked_fill(count == 0, 1)
