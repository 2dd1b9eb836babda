"""Corrections for rows that another policy sampled than the one that learns from them."""
from typing import Optional, Tuple

from torch import Tensor

from .check import check_choice, check_leading, check_number, check_tensor
from .kl import bounded, kl_estimate
from .reduce import masked_mean, row_mean

CORRECTIONS = ('token', 'sequence')
OUTSIDE = ('truncate', 'mask')


def sampler_correction(
        logp: Tensor,
        logp_sampler: Tensor,
        weight: Tensor,
        level: str = 'token',
        bound: float = 2.0,
        low: Optional[float] = None,
        outside: str = 'truncate'
) -> Tuple[Tensor, float]:
    """
    Overview:
        Importance weights r of the policy that learns relative to the policy that sampled, within bounds. With \
        ``token``, r is the ratio of each token's probabilities, which ignores that the tokens before it came from \
        the other policy too. With ``sequence``, r is the ratio of the whole row's probabilities: unbiased without \
        bounds, and of large variance in long rows. Truncation: Ionides (2008), \
        https://doi.org/10.1198/106186008X320456. Masks of tokens outside [0.5, 5]: IcePop, \
        https://arxiv.org/abs/2510.18855.
    Arguments:
        - logp (:obj:`torch.FloatTensor`): Log-probabilities under the policy that learns, in nats.
        - logp_sampler (:obj:`torch.FloatTensor`): Log-probabilities that the sampler reported.
        - bound (:obj:`float`): Largest weight, at least 1.
        - low (:obj:`Optional[float]`): Smallest weight, from 0 to 1; None: 0.
        - outside (:obj:`str`): What a ratio outside the bounds becomes: the bound (``truncate``), or 0 (``mask``), \
            so that the token is not learned from.
    Returns:
        - factor (:obj:`torch.FloatTensor`): The weight of each token, 1 where none counts.
        - cut (:obj:`float`): Share of the tokens whose ratio is outside the bounds.
    Shapes:
        - logp, logp_sampler, weight, factor (:obj:`torch.FloatTensor`): :math:`(B, S)`
    """
    _check(logp, logp_sampler, weight)
    check_choice('level', level, CORRECTIONS)
    check_choice('outside', outside, OUTSIDE)
    check_number('bound', bound, low=1)
    least = 0.0 if low is None else low
    check_number('low', least, high=1)
    log_ratio = (logp - logp_sampler).masked_fill(weight == 0, 0)
    if level == 'sequence':
        log_ratio = (log_ratio * weight).sum(1, keepdim=True).expand_as(log_ratio)
    ratio = bounded(log_ratio).exp().masked_fill(weight == 0, 1)
    cut = (ratio > bound) | (ratio < least)
    factor = ratio.clamp(least, bound) if outside == 'truncate' else ratio.masked_fill(cut, 0)
    return factor, masked_mean(cut.to(ratio.dtype), weight).item()


def far_rows(logp: Tensor, logp_sampler: Tensor, weight: Tensor, most: float) -> Tensor:
    """The rows (B, ) from which the policy that learns has moved far away: those whose mean of ``logp_sampler - logp``
    over tokens exceeds ``most`` nats. DeepSeek-V3.2 masks such rows where their advantage is negative,
    https://arxiv.org/abs/2512.02556."""
    return _row_kl(logp, logp_sampler, weight, 'k1') > _checked(most)


def divergent_rows(logp: Tensor, logp_sampler: Tensor, weight: Tensor, most: float, kl_type: str = 'k3') -> Tensor:
    """The rows (B, ) whose mean over tokens of an estimate of KL(sampler || policy that learns), see ``kl_estimate``,
    exceeds ``most`` nats; with ``k1``, which may be negative, its absolute value."""
    return _row_kl(logp, logp_sampler, weight, kl_type).abs() > _checked(most)


def _row_kl(logp: Tensor, logp_sampler: Tensor, weight: Tensor, kl_type: str) -> Tensor:
    """The mean over tokens (B, )."""
    _check(logp, logp_sampler, weight)
    counted = weight != 0
    sampled, learned = (x.masked_fill(~counted, 0) for x in (logp_sampler, logp))
    return row_mean(kl_estimate(sampled, learned, kl_type), weight)


def _checked(most: float) -> float:
    check_number('most', most)
    return most


def _check(logp: Tensor, logp_sampler: Tensor, weight: Tensor) -> None:
    check_leading('logp', logp, '(B, S)')
    check_tensor('logp_sampler', logp_sampler, tuple(logp.shape), '(B, S)')
    check_tensor('weight', weight, tuple(logp.shape), '(B, S)', 'numbers')
