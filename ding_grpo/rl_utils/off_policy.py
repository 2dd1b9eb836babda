"""Corrections for rows that another policy sampled than the one that learns from them."""
from typing import Tuple

from torch import Tensor

from .check import check_choice, check_leading, check_number, check_tensor
from .kl import bounded
from .reduce import masked_mean, row_mean

CORRECTIONS = ('token', 'sequence')


def sampler_correction(logp: Tensor,
                       logp_sampler: Tensor,
                       weight: Tensor,
                       level: str = 'token',
                       bound: float = 2.0) -> Tuple[Tensor, float]:
    """
    Overview:
        Truncated importance weights of the policy that learns relative to the policy that sampled: min(r, bound). \
        With ``token``, r is the ratio of each token's probabilities, which ignores that the tokens before it came \
        from the other policy too. With ``sequence``, r is the ratio of the whole row's probabilities: unbiased \
        without the bound, and of large variance in long rows. Truncation: Ionides (2008), \
        https://doi.org/10.1198/106186008X320456.
    Arguments:
        - logp (:obj:`torch.FloatTensor`): Log-probabilities under the policy that learns, in nats.
        - logp_sampler (:obj:`torch.FloatTensor`): Log-probabilities that the sampler reported.
        - bound (:obj:`float`): Largest weight, at least 1.
    Returns:
        - factor (:obj:`torch.FloatTensor`): The weight of each token, 1 where none counts.
        - cut (:obj:`float`): Share of the tokens whose ratio is above the bound.
    Shapes:
        - logp, logp_sampler, weight, factor (:obj:`torch.FloatTensor`): :math:`(B, S)`
    """
    _check(logp, logp_sampler, weight)
    check_choice('level', level, CORRECTIONS)
    check_number('bound', bound, low=1)
    log_ratio = (logp - logp_sampler).masked_fill(weight == 0, 0)
    if level == 'sequence':
        log_ratio = (log_ratio * weight).sum(1, keepdim=True).expand_as(log_ratio)
    ratio = bounded(log_ratio).exp().masked_fill(weight == 0, 1)
    return ratio.clamp(max=bound), masked_mean((ratio > bound).to(ratio.dtype), weight).item()


def far_rows(logp: Tensor, logp_sampler: Tensor, weight: Tensor, most: float) -> Tensor:
    """The rows (B, ) from which the policy that learns has moved far away: those whose mean of ``logp_sampler - logp``
    over tokens exceeds ``most`` nats. DeepSeek-V3.2 masks such rows where their advantage is negative,
    https://arxiv.org/abs/2512.02556."""
    _check(logp, logp_sampler, weight)
    check_number('most', most)
    return row_mean((logp_sampler - logp).masked_fill(weight == 0, 0), weight) > most


def _check(logp: Tensor, logp_sampler: Tensor, weight: Tensor) -> None:
    check_leading('logp', logp, '(B, S)')
    check_tensor('logp_sampler', logp_sampler, tuple(logp.shape), '(B, S)')
    check_tensor('weight', weight, tuple(logp.shape), '(B, S)', 'numbers')
