"""
The GRPO loss and its variants, as independent choices of ratio level, surrogate, reduction and KL. Even with the
defaults it departs from equation 3 of https://arxiv.org/abs/2402.03300 in two points:

1. A row in which no token counts contributes 0 (DI-engine main divides 0 by 0).
2. ``logp_old=None`` assumes that the trained policy sampled the tokens: the ratio is exactly 1, its gradient is not 0.
"""
from collections import namedtuple
from typing import Any, Dict, List, Optional, Tuple, Union

import torch
from torch import Tensor

from .check import as_floats, check_leading, check_number, check_tensor
from .kl import KL_TYPES, bounded, kl_estimate
from .log_prob import LogProbFunction, efficient_method
from .reduce import REDUCTIONS, masked_mean, reduce_loss, row_mean
from .surrogates import ROW_SURROGATES, SURROGATES, TOKEN_RATIO_SURROGATES, Surrogate, check_surrogate_options, \
    surrogate_arguments

grpo_data = namedtuple('grpo_data', ['logp_new', 'logp_old', 'logp_ref', 'adv', 'weight'])
grpo_policy_data = namedtuple('grpo_policy_data', ['logit_new', 'logit_old', 'logit_ref', 'action', 'adv', 'weight'])


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
        - ratio_mean (:obj:`float`): Mean ratio.
        - ratio_max (:obj:`float`): Largest ratio.
        - effective_sample_size (:obj:`float`): (sum r)^2 / sum r^2 as a share of the tokens; 1 on-policy.
    Interfaces:
        ``metrics``
    """

    def __new__(cls, approx_kl: float, clipfrac: float, **others: float) -> 'grpo_info':
        info = super().__new__(cls, approx_kl, clipfrac)
        vars(info).update(others)
        return info

    def metrics(self) -> Dict[str, float]:
        """
        Overview:
            All metrics by name.
        """
        return {**self._asdict(), **vars(self)}


RATIOS = ('token', 'sequence')


def grpo_error(
        data: namedtuple,
        *,
        clip_ratio: float = 0.2,
        clip_ratio_high: Optional[float] = None,
        beta: float = 0.1,
        kl_type: str = 'k3',
        ratio: str = 'token',
        surrogate: Union[str, Surrogate] = 'clip',
        surrogate_options: Optional[Dict[str, Any]] = None,
        delta: Optional[float] = None,
        reduction: str = 'sequence',
        max_length: Optional[int] = None,
        num_tokens: Optional[float] = None,
        kl_ratio_correction: bool = False,
        mask_metrics: bool = True,
        with_info: bool = True,
) -> Tuple[Tensor, Optional[grpo_info]]:
    """
    Overview:
        Loss of Group Relative Policy Optimization and its variants from log-probabilities. The defaults are equation \
        3 of https://arxiv.org/abs/2402.03300. ``LOSS_PRESETS`` contains the combinations of the papers.
    Arguments:
        - data (:obj:`namedtuple`): ``grpo_data``. ``logp_old=None``: the trained policy sampled the tokens. \
            ``logp_ref=None``: no reference policy, requires ``beta=0``. ``weight=None``: every token counts.
        - clip_ratio (:obj:`float`): Clipping range of the probability ratio below 1, and also above 1 unless \
            ``clip_ratio_high`` is given.
        - clip_ratio_high (:obj:`Optional[float]`): Clipping range above 1. For ``cispo`` the bound itself, as in TRL.
        - beta (:obj:`float`): Coefficient of the KL to the reference policy.
        - kl_type (:obj:`str`): Estimator of that KL, ``k1``, ``k2`` or ``k3``.
        - ratio (:obj:`str`): ``token``, or ``sequence`` for the geometric mean over the row's tokens, GSPO, \
            https://arxiv.org/abs/2507.18071.
        - surrogate (:obj:`Union[str, Surrogate]`): A key of ``SURROGATES``, or a function.
        - surrogate_options (:obj:`Optional[Dict[str, Any]]`): The surrogate's own options by name.
        - delta (:obj:`Optional[float]`): Upper bound of the ratio for negative advantages, which clipping does not \
            bound, https://arxiv.org/abs/2505.07291. Must exceed 1 + the clipping range; ``clip`` only.
        - reduction (:obj:`str`): ``sequence``, ``token``, ``constant`` or ``sum``, see ``reduce_loss``. The surrogate \
            ``geo_mean`` has one objective per row, and the loss is the mean over rows whatever the reduction.
        - max_length (:obj:`Optional[int]`): As in ``reduce_loss``, for ``constant``.
        - num_tokens (:obj:`Optional[float]`): As in ``reduce_loss``, for ``token`` with accumulated gradients.
        - kl_ratio_correction (:obj:`bool`): Whether to multiply the KL by the ratio. It is then an estimate under the \
            trained policy even if another policy sampled the tokens.
        - mask_metrics (:obj:`bool`): Whether ``info`` counts only tokens with nonzero weight. False counts all \
            tokens, as DI-engine main does.
        - with_info (:obj:`bool`): Whether to compute the metrics, which take about half of the time.
    Returns:
        - loss (:obj:`torch.FloatTensor`): The differentiable loss, a 0-dim tensor.
        - info (:obj:`Optional[grpo_info]`): The metrics; ``approx_kl, clipfrac = info`` as in DI-engine main. None \
            without ``with_info``.
    Shapes:
        - logp_new (:obj:`torch.FloatTensor`): :math:`(B, S)`, B rows of S tokens
        - logp_old (:obj:`torch.FloatTensor`): :math:`(B, S)`
        - logp_ref (:obj:`torch.FloatTensor`): :math:`(B, S)`
        - adv (:obj:`torch.FloatTensor`): :math:`(B, )`, or :math:`(B, S)` with one advantage per token
        - weight (:obj:`torch.FloatTensor`): :math:`(B, S)`
    Raises:
        - ValueError: If a field has the wrong shape or type, an option is invalid, or a required field or option is \
            missing.
    """
    _check_fields(data)
    _check_options(clip_ratio, clip_ratio_high, beta, kl_type, ratio, surrogate, delta)
    surrogate_options = surrogate_options or {}
    check_surrogate_options(surrogate, surrogate_options)
    if data.logp_ref is None and beta != 0:
        raise ValueError(f'beta = {beta}: must be 0 without logp_ref')
    dtype = torch.promote_types(data.logp_new.dtype, torch.float32)
    logp_new, logp_old, logp_ref, adv, weight = (None if x is None else x.to(dtype) for x in data)
    low, high = 1 - clip_ratio, 1 + (clip_ratio if clip_ratio_high is None else clip_ratio_high)
    if surrogate == 'cispo':
        high -= 1
    weight = torch.ones_like(logp_new) if weight is None else weight
    adv = adv.unsqueeze(1) if adv.dim() == 1 else adv  # (B, 1) or (B, S)

    # Padding may contain any value, even minus infinity; it must reach neither the loss nor a gradient.
    per_token = [logp_new, logp_new.detach() if logp_old is None else logp_old, logp_ref]
    filled = [None if x is None else x.masked_fill(weight == 0, 0) for x in per_token]
    log_ratio, r, kl = _ratio_and_kl(*filled, weight, ratio, kl_type, kl_ratio_correction)  # (B, S) each
    objective = surrogate if callable(surrogate) else SURROGATES[surrogate]
    given = {name: dict(logp_old=filled[1], weight=weight)[name] for name in surrogate_arguments(objective)[0]}
    bound = {} if delta is None else dict(delta=delta)
    loss = -objective(r, adv, filled[0], low, high, **bound, **given, **surrogate_options)  # (B, S)
    if objective in ROW_SURROGATES and reduction in REDUCTIONS:
        loss, reduction, num_tokens = loss.expand_as(weight), 'sequence', None
    if beta != 0:
        loss = loss + beta * kl
    loss = reduce_loss(loss, weight, reduction, max_length, num_tokens)
    if not with_info:
        return loss, None

    with torch.no_grad():
        counted = weight
        if not mask_metrics:
            counted = torch.ones_like(weight)
            log_ratio, r, kl = _ratio_and_kl(*per_token, weight, ratio, kl_type, kl_ratio_correction)
        return loss, _info(log_ratio, r, kl, adv, counted, low, high)


def _info(
        log_ratio: Tensor, ratio: Tensor, kl: Tensor, adv: Tensor, counted: Tensor, low: float, high: float
) -> grpo_info:

    def mean(x: Tensor) -> float:
        return masked_mean(x.to(ratio.dtype), counted).item()

    largest = ratio.masked_fill(counted == 0, 0).max() if ratio.numel() > 0 else ratio.new_zeros(())
    share = ratio * counted / largest.clamp(min=torch.finfo(ratio.dtype).tiny)  # the square of ratio may overflow
    return grpo_info(
        approx_kl=mean(-log_ratio),
        clipfrac=mean((ratio < low) | (ratio > high)),
        clipfrac_low=mean((ratio < low) & (adv < 0)),
        clipfrac_high=mean((ratio > high) & (adv > 0)),
        kl=mean(kl),
        ratio_mean=mean(ratio),
        ratio_max=largest.item(),
        effective_sample_size=masked_mean(share, counted).item() ** 2 /
        masked_mean(share * share, counted).item() if largest > 0 else 0.,
    )


def _ratio_and_kl(
        logp_new: Tensor, logp_old: Tensor, logp_ref: Optional[Tensor], weight: Tensor, ratio: str, kl_type: str,
        kl_ratio_correction: bool
) -> Tuple[Tensor, Tensor, Tensor]:
    log_ratio = logp_new - logp_old
    log_weight = log_ratio if ratio == 'token' else row_mean(log_ratio, weight).unsqueeze(1).expand_as(log_ratio)
    r = bounded(log_weight).exp()
    kl = torch.zeros_like(logp_new) if logp_ref is None else kl_estimate(logp_new, logp_ref, kl_type)
    return log_ratio, r, kl * r if kl_ratio_correction else kl


def grpo_policy_error(
        data: namedtuple,
        log_prob_fn: LogProbFunction = efficient_method,
        clip_ratio: float = 0.2,
        beta: float = 0.1,
        **options,
) -> Tuple[Tensor, grpo_info]:
    """
    Overview:
        ``grpo_error`` from logits, with the name and fields of DI-engine main. The loss equals that of DI-engine \
        main; so does ``info`` with ``mask_metrics=False``.
    Arguments:
        - data (:obj:`namedtuple`): ``grpo_policy_data``. ``logit_old``, ``logit_ref`` and ``weight`` may be None \
            as in ``grpo_error``.
        - log_prob_fn (:obj:`LogProbFunction`): Maps logits and sampled tokens to log-probabilities.
        - clip_ratio (:obj:`float`): As in ``grpo_error``.
        - beta (:obj:`float`): As in ``grpo_error``.
        - options: Every other argument of ``grpo_error``.
    Returns:
        - loss (:obj:`torch.FloatTensor`): As in ``grpo_error``.
        - info (:obj:`grpo_info`): As in ``grpo_error``.
    Shapes:
        - logit_new (:obj:`torch.FloatTensor`): :math:`(B, S, V)`, V tokens in the vocabulary
        - logit_old (:obj:`torch.FloatTensor`): :math:`(B, S, V)`
        - logit_ref (:obj:`torch.FloatTensor`): :math:`(B, S, V)`
        - action (:obj:`torch.LongTensor`): :math:`(B, S)`
        - adv (:obj:`torch.Tensor`): :math:`(B, )`, floats or integers
        - weight (:obj:`torch.FloatTensor`): :math:`(B, S)`
    """
    logits = dict(logit_new=data.logit_new, logit_old=data.logit_old, logit_ref=data.logit_ref)
    new, old, ref = log_probs(logits, data.action, data.weight, log_prob_fn)
    data = grpo_data(new, old, ref, as_floats(data.adv), data.weight)
    return grpo_error(data, clip_ratio=clip_ratio, beta=beta, **options)


def log_probs(
        logits: Dict[str, Optional[Tensor]], action: Tensor, weight: Optional[Tensor], log_prob_fn: LogProbFunction
) -> List[Optional[Tensor]]:
    """
    Overview:
        Log-probabilities of the same tokens under several policies. Where ``weight`` is 0, ``action`` may contain any \
        value, such as the common -100.
    Arguments:
        - logits (:obj:`Dict[str, Optional[torch.FloatTensor]]`): Logits by name, for messages. The first belong to \
            the trained policy; the others may be None.
        - action (:obj:`torch.LongTensor`): The sampled tokens.
        - weight (:obj:`Optional[torch.Tensor]`): 0 where a token does not count.
        - log_prob_fn (:obj:`LogProbFunction`): Maps logits and tokens to log-probabilities.
    Returns:
        - logps (:obj:`List[Optional[torch.FloatTensor]]`): Log-probabilities for each entry of ``logits``, or None.
    Shapes:
        - logits (:obj:`torch.FloatTensor`): :math:`(B, S, V)` each
        - action (:obj:`torch.LongTensor`): :math:`(B, S)`
        - weight (:obj:`torch.Tensor`): :math:`(B, S)`
        - logps (:obj:`torch.FloatTensor`): :math:`(B, S)` each
    Raises:
        - ValueError: If a shape or a type is wrong.
    """
    (first, new), *others = logits.items()
    check_leading(first, new, '(B, S, V) or (B, N)')
    for name, x in others:
        check_tensor(name, x, tuple(new.shape), f'that of {first}', optional=True)
    check_tensor('action', action, tuple(new.shape[:-1]), f'that of {first} without the last', 'int64')
    check_tensor('weight', weight, tuple(action.shape), 'that of action', 'numbers', optional=True)
    if weight is not None:
        outside = (action < 0) | (action >= new.shape[-1])
        action = action.masked_fill(outside & (weight == 0), 0)
    if action.numel() > 0 and not 0 <= action.min() <= action.max() < new.shape[-1]:
        raise ValueError(
            f'action from {action.min()} to {action.max()}: must be from 0 to {new.shape[-1] - 1} on tokens that count'
        )
    return [None if x is None else log_prob_fn(x, action) for x in logits.values()]


def _check_fields(data: namedtuple) -> None:
    check_leading('logp_new', data.logp_new, '(B, S)')
    shape = tuple(data.logp_new.shape)
    check_tensor('logp_old', data.logp_old, shape, '(B, S)', optional=True)
    check_tensor('logp_ref', data.logp_ref, shape, '(B, S)', optional=True)
    check_tensor('weight', data.weight, shape, '(B, S)', 'numbers', optional=True)
    check_leading('adv', data.adv, '(B, ) or (B, S)')
    check_tensor('adv', data.adv, shape[:data.adv.dim()], '(B, ) or (B, S)')


def _check_options(
        clip_ratio: float, clip_ratio_high: Optional[float], beta: float, kl_type: str, ratio: str,
        surrogate: Union[str, Surrogate], delta: Optional[float]
) -> None:
    for name, value in (('clip_ratio', clip_ratio), ('clip_ratio_high', clip_ratio_high), ('beta', beta)):
        if name != 'clip_ratio_high' or value is not None:
            check_number(name, value)
    if kl_type not in KL_TYPES:
        raise ValueError(f'kl_type = {kl_type!r}: must be one of {KL_TYPES}')
    if ratio not in RATIOS:
        raise ValueError(f'ratio = {ratio!r}: must be one of {RATIOS}')
    if not callable(surrogate) and not (isinstance(surrogate, str) and surrogate in SURROGATES):
        raise ValueError(f'surrogate = {surrogate!r}: must be one of {tuple(SURROGATES)} or a function')
    if ratio != 'token' and (surrogate if callable(surrogate) else SURROGATES[surrogate]) in TOKEN_RATIO_SURROGATES:
        raise ValueError(f"ratio = {ratio!r}: must be 'token' for surrogate {surrogate!r}")
    if delta is not None and surrogate != 'clip':
        raise ValueError(f"delta = {delta}: must be None for surrogate {surrogate!r}; only 'clip' uses it")
    high = 1 + (clip_ratio if clip_ratio_high is None else clip_ratio_high)
    if delta is not None and not delta > high:
        raise ValueError(f'delta = {delta}: must be greater than 1 + the clipping range above 1, {high}')
