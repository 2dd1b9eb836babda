"""
Clip-Cov and KL-Cov, https://arxiv.org/abs/2505.22617: a few tokens whose advantage and log-probability have a large
covariance reduce the entropy most. KL-Cov departs from verl in one point: it penalises only tokens of positive
covariance. verl fills up the share with others, so that rewards that are all equal would still move the policy.
"""
from typing import Any, Dict

import torch
from torch import Tensor

from ding_grpo.rl_utils.reduce import masked_mean

from .clip import clip_surrogate
from .registry import Limits, register_surrogate

_SHARE, _POSITIVE = Limits(open_low=True, high=1), Limits(open_low=True)


def _check_clip_cov(options: Dict[str, Any]) -> None:
    low, high, generator = (options[name] for name in ('low', 'high', 'generator'))
    if not isinstance(generator, (torch.Generator, type(None))):
        given = type(generator).__name__
        raise ValueError(f"surrogate_options['generator'] of {given}: must be a torch.Generator, or None")
    if not low < high:
        raise ValueError(f"surrogate_options['low'] = {low}: must be below 'high', {high}")


@register_surrogate(
    'clip_cov',
    token_ratio=True,
    of_batch=True,
    limits=dict(share=_SHARE, low=Limits(), high=_POSITIVE),
    check=_check_clip_cov,
)
def clip_cov_surrogate(
        ratio,
        adv,
        logp_new,
        ratio_low,
        ratio_high,
        *,
        weight,
        share=0.0002,
        low=1.0,
        high=5.0,
        generator=None
) -> Tensor:
    """The ``clip`` objective, and 0 for a share of the tokens (at least one) that ``generator`` draws among those that
    are not clipped and whose covariance of A and log pi is between low and high."""
    objective = clip_surrogate(ratio, adv, logp_new, ratio_low, ratio_high)
    covariance = _covariance(adv, logp_new, weight)
    candidate = (covariance > low) & (covariance < high) & (ratio * adv <= objective) & (weight != 0)
    places = candidate.flatten().nonzero().squeeze(1)
    order = torch.randperm(len(places), generator=generator)[:_count(share, weight)].to(places.device)
    return objective * torch.ones_like(objective).flatten().index_fill(0, places[order], 0).view_as(objective)


@register_surrogate('kl_cov', token_ratio=True, of_batch=True, limits=dict(share=_SHARE, coefficient=Limits()))
def kl_cov_surrogate(ratio, adv, logp_new, low, high, *, logp_old, weight, share=0.0002, coefficient=1.0) -> Tensor:
    """r A, minus coefficient |log r| for the share of the tokens (at least one) with the largest covariance of A and
    log pi. Nothing is clipped."""
    covariance = _covariance(adv, logp_new, weight).masked_fill(weight == 0, 0).flatten()
    value, place = covariance.topk(min(_count(share, weight), len(covariance)))
    penalised = torch.zeros_like(covariance).index_fill(0, place[value > 0], 1).view_as(logp_new)
    return ratio * adv - coefficient * (logp_new - logp_old).abs() * penalised


@torch.no_grad()
def _covariance(adv: Tensor, logp_new: Tensor, weight: Tensor) -> Tensor:
    """(B, S): (A - mean A) (log pi - mean log pi), with means over the tokens that count."""
    adv = adv.expand_as(logp_new)
    return (adv - masked_mean(adv, weight)) * (logp_new - masked_mean(logp_new, weight))


def _count(share: float, weight: Tensor) -> int:
    """The number of tokens in a share of those that count, at least 1."""
    return max(1, int(share * int((weight != 0).sum())))
