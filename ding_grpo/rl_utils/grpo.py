"""
The GRPO loss. Where it departs from equation 3 of https://arxiv.org/abs/2402.03300:

1. The KL term has a choice of estimators (``kl_type``); the paper's is k3, the default.
2. A row in which no token counts contributes 0 (DI-engine main divides 0 by 0).
3. ``logp_old=None`` takes the sampling policy for the trained one: the ratio is exactly 1, its gradient is not 0.
"""
from collections import namedtuple
from typing import Optional, Tuple

import torch
from torch import Tensor

from .kl import kl_estimate
from .log_prob import LogProbFunction, efficient_method
from .reduce import masked_mean, sequence_mean

grpo_data = namedtuple('grpo_data', ['logp_new', 'logp_old', 'logp_ref', 'adv', 'weight'])
grpo_policy_data = namedtuple('grpo_policy_data', ['logit_new', 'logit_old', 'logit_ref', 'action', 'adv', 'weight'])
grpo_info = namedtuple(
    'grpo_info', ['approx_kl', 'clipfrac', 'clipfrac_low', 'clipfrac_high', 'kl', 'ratio_mean', 'ratio_max']
)


def grpo_error(
        data: namedtuple,
        *,
        clip_ratio: float = 0.2,
        beta: float = 0.1,
        kl_type: str = 'k3',
        mask_metrics: bool = True,
) -> Tuple[Tensor, namedtuple]:
    """
    Overview:
        Loss of Group Relative Policy Optimization from log-probabilities, equation 3 of \
        https://arxiv.org/abs/2402.03300: the mean over rows of each row's mean over its tokens of \
        -min(ratio * adv, clip(ratio, 1 - clip_ratio, 1 + clip_ratio) * adv) + beta * KL(new || ref).
    Arguments:
        - data (:obj:`namedtuple`): ``grpo_data``. ``logp_old=None``: the tokens are of the policy being trained. \
            ``logp_ref=None``: no reference, needs ``beta=0``. ``weight=None``: every token counts.
        - clip_ratio (:obj:`float`): Clipping range of the probability ratio.
        - beta (:obj:`float`): Coefficient of the KL to the reference.
        - kl_type (:obj:`str`): Estimator of that KL, ``k1``, ``k2`` or ``k3``.
        - mask_metrics (:obj:`bool`): Whether ``info`` counts only tokens of weight 1; DI-engine main counts all.
    Returns:
        - loss (:obj:`torch.FloatTensor`): The differentiable loss, a 0-dim tensor.
        - info (:obj:`namedtuple`): ``grpo_info`` of Python floats: ``approx_kl`` mean of logp_old - logp_new, \
            ``clipfrac`` share of ratios outside the clipping range, ``clipfrac_low`` and ``clipfrac_high`` below \
            and above it, ``kl`` mean estimate to the reference (0 without one), mean and maximum of the ratio.
    Shapes:
        - logp_new (:obj:`torch.FloatTensor`): :math:`(B, S)`, B rows of S tokens
        - logp_old (:obj:`torch.FloatTensor`): :math:`(B, S)`
        - logp_ref (:obj:`torch.FloatTensor`): :math:`(B, S)`
        - adv (:obj:`torch.FloatTensor`): :math:`(B, )`, or :math:`(B, S)` with one advantage a token
        - weight (:obj:`torch.FloatTensor`): :math:`(B, S)`
    Raises:
        - ValueError: If a field has another shape, or ``beta`` is not 0 without ``logp_ref``.
    """
    logp_new, logp_old, logp_ref, adv, weight = data
    _check_shapes(data)
    if logp_ref is None and beta != 0:
        raise ValueError(f'beta = {beta}: needs logp_ref; without a reference beta must be 0')
    weight = torch.ones_like(logp_new) if weight is None else weight.to(logp_new.dtype)
    adv = adv.unsqueeze(1) if adv.dim() == 1 else adv  # (B, 1) or (B, S)

    log_ratio = logp_new - (logp_new.detach() if logp_old is None else logp_old)  # (B, S)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
    loss = -torch.min(ratio * adv, clipped * adv)  # (B, S)
    kl = torch.zeros_like(logp_new) if logp_ref is None else kl_estimate(logp_new, logp_ref, kl_type)
    if beta != 0:
        loss = loss + beta * kl
    loss = sequence_mean(loss, weight)

    with torch.no_grad():
        counted = weight if mask_metrics else torch.ones_like(weight)

        def mean(x: Tensor) -> float:
            return masked_mean(x.to(logp_new.dtype), counted).item()

        low, high = mean(ratio < 1 - clip_ratio), mean(ratio > 1 + clip_ratio)
        info = grpo_info(
            approx_kl=mean(-log_ratio),
            clipfrac=low + high,
            clipfrac_low=low,
            clipfrac_high=high,
            kl=mean(kl),
            ratio_mean=mean(ratio),
            ratio_max=ratio.masked_fill(counted == 0, 0).max().item() if ratio.numel() > 0 else 0.,
        )
    return loss, info


def grpo_policy_error(
        data: namedtuple,
        log_prob_fn: LogProbFunction = efficient_method,
        clip_ratio: float = 0.2,
        beta: float = 0.1,
        kl_type: str = 'k3',
        mask_metrics: bool = True,
) -> Tuple[Tensor, namedtuple]:
    """
    Overview:
        ``grpo_error`` from logits, under the name and the fields that DI-engine main has; the same numbers, with \
        ``mask_metrics=False`` also in ``info``.
    Arguments:
        - data (:obj:`namedtuple`): ``grpo_policy_data``. ``logit_old``, ``logit_ref`` and ``weight`` may be None \
            as in ``grpo_error``.
        - log_prob_fn (:obj:`LogProbFunction`): Logits and taken tokens to log-probabilities.
        - clip_ratio (:obj:`float`): As in ``grpo_error``.
        - beta (:obj:`float`): As in ``grpo_error``.
        - kl_type (:obj:`str`): As in ``grpo_error``.
        - mask_metrics (:obj:`bool`): As in ``grpo_error``.
    Returns:
        - loss (:obj:`torch.FloatTensor`): As in ``grpo_error``.
        - info (:obj:`namedtuple`): As in ``grpo_error``.
    Shapes:
        - logit_new (:obj:`torch.FloatTensor`): :math:`(B, S, V)`, V tokens in the vocabulary
        - logit_old (:obj:`torch.FloatTensor`): :math:`(B, S, V)`
        - logit_ref (:obj:`torch.FloatTensor`): :math:`(B, S, V)`
        - action (:obj:`torch.LongTensor`): :math:`(B, S)`
        - adv (:obj:`torch.FloatTensor`): :math:`(B, )`
        - weight (:obj:`torch.FloatTensor`): :math:`(B, S)`
    """

    def log_prob(logit: Optional[Tensor]) -> Optional[Tensor]:
        return None if logit is None else log_prob_fn(logit, data.action)

    per_token = grpo_data(
        log_prob(data.logit_new), log_prob(data.logit_old), log_prob(data.logit_ref), data.adv, data.weight
    )
    return grpo_error(per_token, clip_ratio=clip_ratio, beta=beta, kl_type=kl_type, mask_metrics=mask_metrics)


def _check_shapes(data: namedtuple) -> None:
    shape = tuple(data.logp_new.shape)
    if len(shape) != 2:
        raise ValueError(f'logp_new {shape}: must be of shape (B, S)')
    for name in ('logp_old', 'logp_ref', 'weight'):
        field = getattr(data, name)
        if field is not None and tuple(field.shape) != shape:
            raise ValueError(f'{name} {tuple(field.shape)}: must be of shape (B, S) = {shape}')
    if tuple(data.adv.shape) not in (shape[:1], shape):
        raise ValueError(f'adv {tuple(data.adv.shape)}: must be of shape (B, ) = {shape[:1]} or (B, S) = {shape}')
