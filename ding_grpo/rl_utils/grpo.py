"""
The GRPO loss and its variants, as independent choices of ratio level, surrogate, reduction and KL. Even with the
defaults it departs from equation 3 of https://arxiv.org/abs/2402.03300 in two points:

1. A row in which no token counts contributes 0 (DI-engine main divides 0 by 0).
2. ``logp_old=None`` assumes that the trained policy sampled the tokens: the ratio is exactly 1, its gradient is not 0.
"""
from collections import namedtuple
from typing import Dict, Optional, Tuple

import torch
from torch import Tensor

from .check import as_floats, check_leading, check_tensor, wide_type
from .kl import bounded, kl_estimate
from .log_probs.log_prob import LogProbFunction, efficient_method, log_probs
from .loss_config import LossConfig, with_options
from .reduce import count_of, reduce_loss, row_mean
from .surrogates import surrogate_arguments

grpo_data = namedtuple('grpo_data', ['logp_new', 'logp_old', 'logp_ref', 'adv', 'weight', 'group'], defaults=(None, ))
grpo_policy_data = namedtuple(
    'grpo_policy_data', ['logit_new', 'logit_old', 'logit_ref', 'action', 'adv', 'weight', 'group'], defaults=(None, )
)


class grpo_info(namedtuple('grpo_info', ['approx_kl', 'clipfrac'])):
    """
    Overview:
        Metrics of ``grpo_error``, as Python floats. As a tuple it has the two fields of DI-engine main, so that \
        ``approx_kl, clipfrac = info`` works. The other metrics are attributes only.
    Attributes:
        - approx_kl (:obj:`float`): Mean of logp_old - logp_new.
        - clipfrac (:obj:`float`): Share of ratios outside the clipping range.
        - clipfrac_low (:obj:`float`): Share of ratios below that range with a negative advantage, where clipping has \
            an effect (as in TRL).
        - clipfrac_high (:obj:`float`): The same above the range with a positive advantage.
        - kl (:obj:`float`): Mean estimate of the KL to the reference policy; 0 without one.
        - effective_sample_size (:obj:`float`): (sum r)^2 / sum r^2 as a share of the tokens; 1 on-policy.
    """

    def __new__(cls, approx_kl: float, clipfrac: float, **others: float) -> 'grpo_info':
        info = super().__new__(cls, approx_kl, clipfrac)
        vars(info).update(others)
        return info

    def metrics(self) -> Dict[str, float]:
        """All metrics by name."""
        return {**self._asdict(), **vars(self)}


def grpo_error(
    data: namedtuple,
    config: LossConfig = LossConfig(),
    *,
    num_tokens: Optional[float] = None,
    with_info: bool = True,
    mask_metrics: bool = True,
    **options,
) -> Tuple[Tensor, Optional[grpo_info]]:
    """
    Overview:
        Loss of Group Relative Policy Optimization and its variants from log-probabilities.
    Arguments:
        - data (:obj:`namedtuple`): ``grpo_data``. ``logp_old=None``: the trained policy sampled the tokens. \
            ``logp_ref=None``: no reference policy, requires ``beta=0``. ``weight=None``: every token counts. \
            ``group``: the group of each row, for surrogates that need it; otherwise None.
        - num_tokens (:obj:`Optional[float]`): As in ``reduce_loss``, for ``token`` with accumulated gradients.
        - with_info (:obj:`bool`): Whether to compute the metrics, which take about half of the time.
        - mask_metrics (:obj:`bool`): Whether ``info`` counts only tokens with nonzero weight. False counts all \
            tokens, as DI-engine main does.
        - options: Options of ``config`` by name, which replace those of ``config``.
    Returns:
        - info (:obj:`Optional[grpo_info]`): The metrics; ``approx_kl, clipfrac = info`` as in DI-engine main. None \
            without ``with_info``.
    Shapes:
        - logp_new, logp_old, logp_ref, weight (:obj:`torch.FloatTensor`): :math:`(B, S)`, B rows of S tokens
        - adv (:obj:`torch.FloatTensor`): :math:`(B, )`, or :math:`(B, S)` with one advantage per token
        - group (:obj:`torch.LongTensor`): :math:`(B, )`
    """
    _check_fields(data)
    config = with_options(config, options)
    if data.logp_ref is None and config.beta != 0:
        raise ValueError(f'beta = {config.beta}: must be 0 without logp_ref')
    dtype = wide_type(data.logp_new)
    logp_new, logp_old, logp_ref, adv, weight = (None if x is None else x.to(dtype) for x in data[:5])
    weight = torch.ones_like(logp_new) if weight is None else weight
    adv = adv.unsqueeze(1) if adv.dim() == 1 else adv  # (B, 1) or (B, S)

    # Padding may contain any value, even minus infinity; it must reach neither the loss nor a gradient.
    per_token = [logp_new, logp_new.detach() if logp_old is None else logp_old, logp_ref]
    filled = [None if x is None else x.masked_fill(weight == 0, 0) for x in per_token]
    log_ratio, r, kl = _ratio_and_kl(*filled, weight, config)  # (B, S) each
    loss = _reduced(-_objective(r, adv, *filled[:2], weight, data.group, config), kl, weight, num_tokens, config)
    if not with_info:
        return loss, None

    with torch.no_grad():
        counted = weight
        if not mask_metrics:
            counted = torch.ones_like(weight)
            log_ratio, r, kl = _ratio_and_kl(*per_token, weight, config)
        return loss, _info(log_ratio, r, kl, adv, counted, *config.bounds)


def _ratio_and_kl(logp_new: Tensor, logp_old: Tensor, logp_ref: Optional[Tensor], weight: Tensor,
                  config: LossConfig) -> Tuple[Tensor, Tensor, Tensor]:
    log_ratio = logp_new - logp_old
    log_weight = log_ratio
    if config.ratio != 'token':
        log_weight = row_mean(log_ratio, weight).unsqueeze(1).expand_as(log_ratio)
    if config.ratio == 'sequence_token':
        log_weight = log_weight.detach() + logp_new - logp_new.detach()
    r = bounded(log_weight).exp()
    kl = torch.zeros_like(logp_new) if logp_ref is None else kl_estimate(logp_new, logp_ref, config.kl_type)
    return log_ratio, r, kl * r if config.kl_ratio_correction else kl


def _objective(
        ratio: Tensor, adv: Tensor, logp_new: Tensor, logp_old: Tensor, weight: Tensor, group: Optional[Tensor],
        config: LossConfig
) -> Tensor:
    """What the surrogate maximises: (B, S), or (B, 1) with one objective per row."""
    tensors = dict(logp_old=logp_old, weight=weight, group=group)
    given = {name: tensors[name] for name in surrogate_arguments(config.objective)[0]}
    if 'group' in given:
        check_tensor('group', group, tuple(weight.shape[:1]), '(B, )', 'int64')
    bound = {} if config.delta is None else dict(delta=config.delta)
    return config.objective(ratio, adv, logp_new, *config.bounds, **bound, **given, **config.surrogate_options)


def _reduced(loss: Tensor, kl: Tensor, weight: Tensor, num_tokens: Optional[float], config: LossConfig) -> Tensor:
    reduction = config.reduction
    if config.traits.of_row:
        loss, reduction, num_tokens = loss.expand_as(weight), 'sequence', None
    if config.beta != 0:
        loss = loss + config.beta * kl
    return reduce_loss(loss, weight, reduction, config.max_length, num_tokens)


def _info(
        log_ratio: Tensor, ratio: Tensor, kl: Tensor, adv: Tensor, counted: Tensor, low: float, high: float
) -> grpo_info:

    outside, total = counted == 0, count_of(counted)

    def mean(x: Tensor) -> Tensor:  # ``masked_mean``, whose parts that depend on the weights alone are computed once
        return (x.to(ratio.dtype) * counted).masked_fill(outside, 0).sum() / total

    largest = ratio.masked_fill(outside, 0).max() if ratio.numel() > 0 else ratio.new_zeros(())
    share = ratio * counted / largest.clamp(min=torch.finfo(ratio.dtype).tiny)  # the square of ratio may overflow
    found = dict(
        approx_kl=mean(-log_ratio),
        clipfrac=mean((ratio < low) | (ratio > high)),
        clipfrac_low=mean((ratio < low) & (adv < 0)),
        clipfrac_high=mean((ratio > high) & (adv > 0)),
        kl=mean(kl),
        ratio_mean=mean(ratio),
        ratio_max=largest,
    )
    shares = [mean(share), mean(share * share)]
    *numbers, of_share, of_square = torch.stack([*found.values(), *shares]).tolist()  # the only wait for a GPU
    found = dict(zip(found, numbers))
    return grpo_info(**found, effective_sample_size=of_share ** 2 / of_square if found['ratio_max'] > 0 else 0.)


def grpo_policy_error(
        data: namedtuple,
        log_prob_fn: LogProbFunction = efficient_method,
        config: LossConfig = LossConfig(),
        **options,
) -> Tuple[Tensor, grpo_info]:
    """
    Overview:
        ``grpo_error`` from logits, with the name and fields of DI-engine main. The loss equals that of DI-engine \
        main; so does ``info`` with ``mask_metrics=False``.
    Arguments:
        - data (:obj:`namedtuple`): ``grpo_policy_data``. ``logit_old``, ``logit_ref``, ``weight`` and ``group`` \
            may be None as in ``grpo_error``.
        - options: The other arguments of ``grpo_error``, such as ``clip_ratio`` and ``beta``.
    Shapes:
        - logit_new, logit_old, logit_ref (:obj:`torch.FloatTensor`): :math:`(B, S, V)`, V tokens in the vocabulary
        - action, weight: :math:`(B, S)`
        - adv (:obj:`torch.Tensor`): :math:`(B, )`, floats or integers
    """
    logits = dict(logit_new=data.logit_new, logit_old=data.logit_old, logit_ref=data.logit_ref)
    new, old, ref = log_probs(logits, data.action, data.weight, log_prob_fn)
    group = getattr(data, 'group', None)  # DI-engine main's tuple has none
    return grpo_error(grpo_data(new, old, ref, as_floats(data.adv), data.weight, group), config, **options)


def _check_fields(data: namedtuple) -> None:
    check_leading('logp_new', data.logp_new, '(B, S)')
    shape = tuple(data.logp_new.shape)
    check_tensor('logp_old', data.logp_old, shape, '(B, S)', optional=True)
    check_tensor('logp_ref', data.logp_ref, shape, '(B, S)', optional=True)
    check_tensor('weight', data.weight, shape, '(B, S)', 'numbers', optional=True)
    check_leading('adv', data.adv, '(B, ) or (B, S)')
    check_tensor('adv', data.adv, shape[:data.adv.dim()], '(B, ) or (B, S)')
