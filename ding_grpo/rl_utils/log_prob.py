from typing import Callable

import torch
from torch import Tensor

LogProbFunction = Callable[[Tensor, Tensor], Tensor]


def naive_method(logits: Tensor, index: Tensor) -> Tensor:
    """
    Overview:
        Log-probability of the taken tokens by a log-softmax over the whole vocabulary.
    Arguments:
        - logits (:obj:`torch.FloatTensor`): Logits, of any float type; half types are computed in float32.
        - index (:obj:`torch.LongTensor`): The taken tokens.
    Returns:
        - logp (:obj:`torch.FloatTensor`): Natural logarithm of the probability of each taken token.
    Shapes:
        - logits (:obj:`torch.FloatTensor`): :math:`(B, S, V)` or :math:`(S, V)`
        - index (:obj:`torch.LongTensor`): :math:`(B, S)` or :math:`(S, )`
        - logp (:obj:`torch.FloatTensor`): Shape of ``index``
    """
    logp = torch.log_softmax(_at_least_float32(logits), dim=-1)  # (B, S, V)
    return logp.gather(-1, index.unsqueeze(-1)).squeeze(-1)  # (B, S)


def efficient_method(logits: Tensor, index: Tensor) -> Tensor:
    """
    Overview:
        The same as ``naive_method`` as taken logit minus log-sum-exp, row by row: less is held at a time than for a \
        log-softmax of the whole.
    Arguments:
        - logits (:obj:`torch.FloatTensor`): As in ``naive_method``.
        - index (:obj:`torch.LongTensor`): As in ``naive_method``.
    Returns:
        - logp (:obj:`torch.FloatTensor`): As in ``naive_method``.
    Shapes:
        As in ``naive_method``.
    """
    taken = logits.gather(-1, index.unsqueeze(-1)).squeeze(-1)  # (B, S)
    if logits.shape[0] == 0:
        return _at_least_float32(taken)
    lse = torch.stack([torch.logsumexp(_at_least_float32(row), dim=-1) for row in logits])  # (B, S)
    return _at_least_float32(taken) - lse


def less_efficient_method(logits: Tensor, index: Tensor) -> Tensor:
    """
    Overview:
        The same as ``naive_method`` through ``torch.distributions.Categorical``.
    Arguments:
        - logits (:obj:`torch.FloatTensor`): As in ``naive_method``.
        - index (:obj:`torch.LongTensor`): As in ``naive_method``.
    Returns:
        - logp (:obj:`torch.FloatTensor`): As in ``naive_method``.
    Shapes:
        As in ``naive_method``.
    """
    distribution = torch.distributions.Categorical(logits=_at_least_float32(logits), validate_args=False)
    return distribution.log_prob(index)


def entropy(logits: Tensor) -> Tensor:
    """
    Overview:
        Entropy of each token's distribution, differentiable, with defined gradients where a probability is 0: logits \
        of minus infinity, and probabilities that underflow.
    Arguments:
        - logits (:obj:`torch.FloatTensor`): As in ``naive_method``.
    Returns:
        - entropy (:obj:`torch.FloatTensor`): In nats.
    Shapes:
        - logits (:obj:`torch.FloatTensor`): :math:`(B, S, V)`
        - entropy (:obj:`torch.FloatTensor`): :math:`(B, S)`
    """
    logp = torch.log_softmax(_at_least_float32(logits), dim=-1)  # (B, S, V)
    return -(logp.exp() * logp.masked_fill(logp == float('-inf'), 0)).sum(-1)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
