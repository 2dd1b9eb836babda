"""
PPO with a KL to a pretrained policy, as in DI-engine's GitHub main but not in its release 0.5.3. It has the same names,
fields and losses, and uses the functions of the installed DI-engine. These are wrong in four points. Only the second is
corrected by default; a keyword corrects each of the others:

1. Means of the losses and of the KL divide by all positions, including padding. ``mask_loss=True`` excludes positions
   of weight 0, also from the KL, which DI-engine does not weight at all.
2. ``approx_kl`` and ``clipfrac`` count padding. Here they do not, as for GRPO and RLOO, because the content of padding
   says nothing about the policy. ``mask_metrics=False`` gives DI-engine's numbers.
3. Dual clip, https://arxiv.org/abs/1912.09729, is for negative advantages. The continuous form applies it to positive
   ones too, where it replaces the objective by its bound. ``dual_clip_negative=True`` does not.
4. A ratio that overflows its type makes gradients NaN. With a ``log_prob_fn``, or ``dual_clip_negative=True`` in the
   continuous form, the policy loss is computed here from log-probabilities, and its gradient is right.

With a ``log_prob_fn``, meant for language models, 1 is right by default too, and only an entropy bonus computes the
distribution over all tokens.

The data may be a namedtuple of this module or of DI-engine, or a plain tuple in the same order. ``logit_pretrained``
may be left out.
"""
from collections import namedtuple
from types import ModuleType
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.distributions import Independent, Normal

from .check import check_floats, check_number, check_tensor
from .grpo import log_probs
from .kl import KL_TYPES, bounded, calculate_kl_div
from .log_prob import LogProbFunction, entropy, naive_method
from .ppo_fields import check_continuous, check_discrete, in_rows, part, ppo_data, ppo_data_continuous, \
    ppo_policy_data, ppo_policy_data_continuous, ppo_value_data, read, select
from .surrogates import clip_surrogate

__all__ = [
    'ppo_data', 'ppo_data_continuous', 'ppo_error', 'ppo_error_continuous', 'ppo_info', 'ppo_loss', 'ppo_policy_data',
    'ppo_policy_data_continuous', 'ppo_policy_error', 'ppo_policy_error_continuous', 'ppo_policy_loss',
    'ppo_value_data', 'ppo_value_error', 'shape_fn_ppo'
]

ppo_loss = namedtuple('ppo_loss', ['policy_loss', 'value_loss', 'entropy_loss', 'kl_div'])
ppo_policy_loss = namedtuple('ppo_policy_loss', ['policy_loss', 'entropy_loss', 'kl_div'])
ppo_info = namedtuple('ppo_info', ['approx_kl', 'clipfrac'])


def shape_fn_ppo(args: Sequence, kwargs: Dict[str, Any]) -> torch.Size:
    """The shape of ``logit_new`` of a call, which DI-engine's wrapper for its CUDA extension asks for."""
    return (args[0] if args else kwargs['data']).logit_new.shape


def _of_ding() -> ModuleType:
    from ding.rl_utils import ppo  # with the first call: the other losses need torch alone
    return ppo


def ppo_error(
        data: namedtuple,
        clip_ratio: float = 0.2,
        use_value_clip: bool = True,
        dual_clip: Optional[float] = None,
        kl_type: str = 'k1',
        entropy_bonus: bool = True,
        log_prob_fn: Optional[LogProbFunction] = None,
        mask_loss: Optional[bool] = None,
        mask_metrics: bool = True,
) -> Tuple[namedtuple, namedtuple]:
    """
    Overview:
        Proximal Policy Optimization, https://arxiv.org/abs/1707.06347: ``ppo_policy_error`` and ``ppo_value_error``.
    Arguments:
        - data (:obj:`namedtuple`): ``ppo_data``; ``weight`` may be None, ``logit_pretrained`` left out.
        - clip_ratio (:obj:`float`): Clipping range of the probability ratio, and of the value's change.
        - use_value_clip (:obj:`bool`): As in ``ppo_value_error``.
        - dual_clip (:obj:`Optional[float]`): As in ``ppo_policy_error``, and the arguments after it.
    Returns:
        - loss (:obj:`namedtuple`): ``ppo_loss`` of differentiable 0-dim tensors.
        - info (:obj:`namedtuple`): ``ppo_info`` of Python floats.
    Shapes:
        - value_new (:obj:`torch.FloatTensor`): As in ``ppo_value_error``, with the shape of ``weight`` unless that is \
            None
        - value_old (:obj:`torch.FloatTensor`): The same
        - return_ (:obj:`torch.FloatTensor`): The same
        - the others: As in ``ppo_policy_error``
    Raises:
        - ValueError: If a shape, a type or an option is wrong.
    """
    data = read(ppo_data, data)
    policy, info = ppo_policy_error(
        part(ppo_policy_data, data), clip_ratio, dual_clip, entropy_bonus, kl_type, log_prob_fn, mask_loss, mask_metrics
    )
    mask_loss = log_prob_fn is not None if mask_loss is None else mask_loss
    value_loss = ppo_value_error(part(ppo_value_data, data), clip_ratio, use_value_clip, mask_loss)
    return ppo_loss(policy.policy_loss, value_loss, policy.entropy_loss, policy.kl_div), info


def ppo_policy_error(
        data: namedtuple,
        clip_ratio: float = 0.2,
        dual_clip: Optional[float] = None,
        entropy_bonus: bool = True,
        kl_type: str = 'k1',
        log_prob_fn: Optional[LogProbFunction] = None,
        mask_loss: Optional[bool] = None,
        mask_metrics: bool = True,
) -> Tuple[namedtuple, namedtuple]:
    """
    Overview:
        Policy part of PPO, for discrete actions and, with S tokens a row, for language models.
    Arguments:
        - data (:obj:`namedtuple`): ``ppo_policy_data``; ``weight`` may be None, ``logit_pretrained`` left out.
        - clip_ratio (:obj:`float`): Clipping range of the probability ratio.
        - dual_clip (:obj:`Optional[float]`): Bound c >= 1 of the ratio for negative advantages, equation 5 of \
            https://arxiv.org/abs/1912.09729.
        - entropy_bonus (:obj:`bool`): Whether ``entropy_loss`` is the mean entropy; else it is 0.
        - kl_type (:obj:`str`): Estimator of the KL to the pretrained policy, ``k1``, ``k2`` or ``k3``; for their \
            gradients see ``straight_through_kl``.
        - log_prob_fn (:obj:`Optional[LogProbFunction]`): Maps logits and sampled tokens to log-probabilities; None \
            uses a ``Categorical`` of all logits, as DI-engine does.
        - mask_loss (:obj:`Optional[bool]`): Whether positions of weight 0 are excluded from the means of the losses \
            and of the KL; None: only with a ``log_prob_fn``.
        - mask_metrics (:obj:`bool`): Whether ``info`` counts only positions with nonzero weight; False counts all, \
            as DI-engine does.
    Returns:
        - loss (:obj:`namedtuple`): ``ppo_policy_loss`` of differentiable 0-dim tensors; ``kl_div`` is 0 without a \
            pretrained policy.
        - info (:obj:`namedtuple`): ``ppo_info`` of Python floats: ``approx_kl`` mean of logp_old - logp_new, \
            ``clipfrac`` share of ratios outside the clipping range.
    Shapes:
        - logit_new (:obj:`torch.FloatTensor`): :math:`(..., N)`, N actions after any leading dimensions, such as \
            :math:`(B, N)`; :math:`(B, S, V)` for a language model; :math:`(B, A, N)` for A agents
        - logit_old (:obj:`torch.FloatTensor`): The same
        - logit_pretrained (:obj:`torch.FloatTensor`): The same
        - action (:obj:`torch.LongTensor`): Leading dimensions of ``logit_new``; integers of any type
        - adv (:obj:`torch.Tensor`): Shape of ``action``, floats or integers. Without dimension 1, the agents', the \
            ratio is the mean over the agents, as in DI-engine
        - weight (:obj:`torch.Tensor`): Shape of ``adv``
    Raises:
        - ValueError: If a shape, a type or an option is wrong.
    """
    _check_options(clip_ratio, dual_clip, kl_type)
    data = in_rows(check_discrete(read(ppo_policy_data, data)))
    mask_loss = log_prob_fn is not None if mask_loss is None else mask_loss
    if log_prob_fn is not None:
        check_tensor('adv', data.adv, tuple(data.action.shape), 'that of action', 'numbers')
        logits = {name: getattr(data, name) for name in ('logit_new', 'logit_old', 'logit_pretrained')}
        logps = log_probs(logits, data.action, data.weight, log_prob_fn)
        own = _LogProbData(*logps, entropy(data.logit_new) if entropy_bonus else None, data.adv, data.weight)
        return _masked(lambda d: _log_prob_error(d, clip_ratio, dual_clip, kl_type), own, mask_loss, mask_metrics)

    def error(data: namedtuple) -> Tuple[namedtuple, namedtuple]:
        if data.adv.numel() == 0:
            return _nothing(data.logit_new)
        ding_ppo = _of_ding()
        loss, info = ding_ppo.ppo_policy_error(part(ding_ppo.ppo_policy_data, data), clip_ratio, dual_clip)
        kl_div = loss.policy_loss.new_zeros(())
        if data.logit_pretrained is not None:
            logp_new, logp_pretrained = (
                naive_method(logit, data.action) for logit in (data.logit_new, data.logit_pretrained)
            )
            kl_div = calculate_kl_div(logp_new - logp_pretrained, kl_type)
        entropy_loss = loss.entropy_loss if entropy_bonus else torch.zeros_like(kl_div)
        return ppo_policy_loss(loss.policy_loss, entropy_loss, kl_div), info

    return _masked(error, data, mask_loss, mask_metrics)


def ppo_value_error(
        data: namedtuple,
        clip_ratio: float = 0.2,
        use_value_clip: bool = True,
        mask_loss: bool = False,
) -> Tensor:
    """
    Overview:
        Value part of PPO: half the mean squared error to the return.
    Arguments:
        - data (:obj:`namedtuple`): ``ppo_value_data``; ``weight`` may be None.
        - clip_ratio (:obj:`float`): Clipping range of the value's change.
        - use_value_clip (:obj:`bool`): Whether the larger error of the value and of the clipped value counts.
        - mask_loss (:obj:`bool`): Whether positions of weight 0 are excluded from the mean.
    Returns:
        - value_loss (:obj:`torch.FloatTensor`): Differentiable 0-dim tensor.
    Shapes:
        - value_new (:obj:`torch.FloatTensor`): Any shape, such as :math:`(B, )` or :math:`(B, S)`
        - value_old (:obj:`torch.FloatTensor`): The same
        - return_ (:obj:`torch.FloatTensor`): The same
        - weight (:obj:`torch.FloatTensor`): The same
    Raises:
        - ValueError: If a shape, a type or an option is wrong.
    """
    _check_options(clip_ratio)
    data = read(ppo_value_data, data)
    check_floats('value_new', data.value_new)
    shape = tuple(data.value_new.shape)
    for name in ('value_old', 'return_'):
        check_tensor(name, getattr(data, name), shape, 'that of value_new', 'numbers')
    check_tensor('weight', data.weight, shape, 'that of value_new', 'numbers', optional=True)
    if mask_loss and data.weight is not None:
        data = select(data, data.weight != 0)
    if data.value_new.numel() == 0:
        return data.value_new.sum()
    return _of_ding().ppo_value_error(data, clip_ratio, use_value_clip)


def ppo_error_continuous(
        data: namedtuple,
        clip_ratio: float = 0.2,
        use_value_clip: bool = True,
        dual_clip: Optional[float] = None,
        kl_type: str = 'k1',
        mask_loss: bool = False,
        mask_metrics: bool = True,
        dual_clip_negative: bool = False,
) -> Tuple[namedtuple, namedtuple]:
    """
    Overview:
        ``ppo_error`` for continuous actions: ``ppo_policy_error_continuous`` and ``ppo_value_error``.
    Arguments:
        - data (:obj:`namedtuple`): ``ppo_data_continuous``; ``weight`` may be None, ``logit_pretrained`` left out.
        - clip_ratio (:obj:`float`): As in ``ppo_error``.
        - use_value_clip (:obj:`bool`): As in ``ppo_value_error``.
        - dual_clip (:obj:`Optional[float]`): As in ``ppo_policy_error_continuous``, and the arguments after it.
    Returns:
        - loss (:obj:`namedtuple`): ``ppo_loss`` of differentiable 0-dim tensors.
        - info (:obj:`namedtuple`): ``ppo_info`` of Python floats.
    Shapes:
        As in ``ppo_policy_error_continuous`` and ``ppo_value_error``.
    Raises:
        - ValueError: If a shape, a type or an option is wrong.
    """
    data = read(ppo_data_continuous, data)
    policy, info = ppo_policy_error_continuous(
        part(ppo_policy_data_continuous, data), clip_ratio, dual_clip, kl_type, mask_loss, mask_metrics,
        dual_clip_negative
    )
    value_loss = ppo_value_error(part(ppo_value_data, data), clip_ratio, use_value_clip, mask_loss)
    return ppo_loss(policy.policy_loss, value_loss, policy.entropy_loss, policy.kl_div), info


def ppo_policy_error_continuous(
        data: namedtuple,
        clip_ratio: float = 0.2,
        dual_clip: Optional[float] = None,
        kl_type: str = 'k1',
        mask_loss: bool = False,
        mask_metrics: bool = True,
        dual_clip_negative: bool = False,
) -> Tuple[namedtuple, namedtuple]:
    """
    Overview:
        Policy part of PPO for actions with a diagonal normal distribution.
    Arguments:
        - data (:obj:`namedtuple`): ``ppo_policy_data_continuous``; ``weight`` may be None, ``logit_pretrained`` \
            (a dict of ``mu`` and ``sigma`` like the others) left out.
        - clip_ratio (:obj:`float`): Clipping range of the probability ratio.
        - dual_clip (:obj:`Optional[float]`): Bound c >= 1 of the ratio, see ``dual_clip_negative``.
        - kl_type (:obj:`str`): As in ``ppo_policy_error``.
        - mask_loss (:obj:`bool`): Whether positions of weight 0 are excluded from the means of the losses and the KL.
        - mask_metrics (:obj:`bool`): As in ``ppo_policy_error``.
        - dual_clip_negative (:obj:`bool`): Whether ``dual_clip`` applies to negative advantages only, as in its \
            paper. The policy loss is then computed here, and ratios that overflow do not affect the gradient.
    Returns:
        - loss (:obj:`namedtuple`): As in ``ppo_policy_error``.
        - info (:obj:`namedtuple`): As in ``ppo_policy_error``.
    Shapes:
        - mu_sigma_new (:obj:`Dict[str, torch.FloatTensor]`): ``mu`` and ``sigma``, each of the shape of ``action`` or \
            of one that broadcasts to it
        - mu_sigma_old (:obj:`Dict[str, torch.FloatTensor]`): The same. Both may be :math:`(B, )` for ``action`` \
            :math:`(B, N)`
        - logit_pretrained (:obj:`Dict[str, torch.FloatTensor]`): As ``mu_sigma_new``
        - action (:obj:`torch.FloatTensor`): :math:`(..., N)`, N numbers after any leading dimensions, such as \
            :math:`(B, N)`
        - adv (:obj:`torch.Tensor`): Leading dimensions of ``action``, floats or integers
        - weight (:obj:`torch.Tensor`): Shape of ``adv``
    Raises:
        - ValueError: If a shape, a type or an option is wrong.
    """
    _check_options(clip_ratio, dual_clip, kl_type)
    data = check_continuous(read(ppo_policy_data_continuous, data))

    if dual_clip_negative or dual_clip == 1:  # DI-engine refuses 1 here, although its discrete form accepts it
        logps = [
            None if d is None else _normal(d).log_prob(data.action)
            for d in (data.mu_sigma_new, data.mu_sigma_old, data.logit_pretrained)
        ]
        own = _LogProbData(*logps, _normal(data.mu_sigma_new).entropy(), data.adv, data.weight)
        return _masked(
            lambda d: _log_prob_error(d, clip_ratio, dual_clip, kl_type, dual_clip_negative), own, mask_loss,
            mask_metrics
        )

    def error(data: namedtuple) -> Tuple[namedtuple, namedtuple]:
        if data.adv.numel() == 0:
            return _nothing(data.mu_sigma_new['mu'])
        ding_ppo = _of_ding()
        loss, info = ding_ppo.ppo_policy_error_continuous(
            part(ding_ppo.ppo_policy_data_continuous, data), clip_ratio, dual_clip
        )
        kl_div = loss.policy_loss.new_zeros(())
        if data.logit_pretrained is not None:
            logp_new, logp_pretrained = (
                _normal(d).log_prob(data.action) for d in (data.mu_sigma_new, data.logit_pretrained)
            )
            kl_div = calculate_kl_div(logp_new - logp_pretrained, kl_type)
        return ppo_policy_loss(loss.policy_loss, loss.entropy_loss, kl_div), info

    return _masked(error, data, mask_loss, mask_metrics)


# A batch as numbers per position; each field has the shape of adv, or (M, ) for the M positions that count.
_LogProbData = namedtuple('_LogProbData', ['logp_new', 'logp_old', 'logp_pretrained', 'entropy', 'adv', 'weight'])


def _log_prob_error(
        data: _LogProbData,
        clip_ratio: float,
        dual_clip: Optional[float],
        kl_type: str,
        dual_clip_negative: bool = True
) -> Tuple[namedtuple, namedtuple]:
    if data.adv.numel() == 0:
        return _nothing(data.logp_new)
    weight = torch.ones_like(data.adv) if data.weight is None else data.weight
    low, high = 1 - clip_ratio, 1 + clip_ratio
    ratio = bounded(data.logp_new - data.logp_old).exp()
    objective = clip_surrogate(ratio, data.adv, data.logp_new, low, high)
    if dual_clip is not None:
        bound = torch.max(objective, dual_clip * data.adv)
        objective = torch.where(data.adv < 0, bound, objective) if dual_clip_negative else bound
    zero = objective.new_zeros(())
    loss = ppo_policy_loss(
        policy_loss=-(objective * weight).mean(),
        entropy_loss=zero if data.entropy is None else (data.entropy * weight).mean(),
        kl_div=zero
        if data.logp_pretrained is None else calculate_kl_div(data.logp_new - data.logp_pretrained, kl_type),
    )
    with torch.no_grad():
        info = ppo_info(
            approx_kl=(data.logp_old - data.logp_new).mean().item(),
            clipfrac=((ratio < low) | (ratio > high)).double().mean().item(),
        )
    return loss, info


def _masked(
        error: Callable[[namedtuple], Tuple[namedtuple, namedtuple]], data: namedtuple, mask_loss: bool,
        mask_metrics: bool
) -> Tuple[namedtuple, namedtuple]:
    """Apply ``error`` to all positions or only to those that count, separately for the loss and for the metrics."""
    if data.weight is None or not (mask_loss or mask_metrics) or (data.weight != 0).all():
        return error(data)
    inside = select(data, data.weight != 0)
    loss, info = error(inside if mask_loss else data)
    if mask_loss != mask_metrics:
        with torch.no_grad():
            _, info = error(inside if mask_metrics else data)
    return loss, info


def _nothing(empty: Tensor) -> Tuple[namedtuple, namedtuple]:
    """The loss of an empty batch: 0, with a gradient of 0."""
    zero = empty.sum()
    return ppo_policy_loss(zero, zero, zero), ppo_info(0., 0.)


def _normal(mu_sigma: Dict[str, Tensor]) -> Independent:
    return Independent(Normal(mu_sigma['mu'], mu_sigma['sigma']), 1)


def _check_options(clip_ratio: float, dual_clip: Optional[float] = None, kl_type: str = 'k1') -> None:
    check_number('clip_ratio', clip_ratio)
    if dual_clip is not None:
        check_number('dual_clip', dual_clip, 1)
    if kl_type not in KL_TYPES:
        raise ValueError(f'kl_type = {kl_type!r}: must be one of {KL_TYPES}')
