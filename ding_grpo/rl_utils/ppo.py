"""
PPO with a KL to a pretrained policy, as in DI-engine's GitHub main but not in its release 0.5.3. It has the same names,
fields and numbers, and uses the functions of the installed DI-engine. Where these are wrong, the default here is wrong
in the same way, and a keyword corrects it:

1. Means of the losses and of the KL divide by all positions, including padding. ``mask_loss=True`` excludes positions
   of weight 0, also from the KL, which DI-engine does not weight at all.
2. ``approx_kl`` and ``clipfrac`` count padding. ``mask_metrics=True`` excludes it.
3. Dual clip, https://arxiv.org/abs/1912.09729, is for negative advantages. The continuous form applies it to positive
   ones too, where it replaces the objective by its bound. ``dual_clip_negative=True`` does not.
4. A ratio that overflows its type makes gradients NaN. With a ``log_prob_fn``, or ``dual_clip_negative=True`` in the
   continuous form, the policy loss is computed here from log-probabilities, and its gradient is right.

With a ``log_prob_fn``, meant for language models, 1 and 2 are right by default, and only an entropy bonus computes the
distribution over all tokens.
"""
from collections import namedtuple
from typing import Any, Callable, Dict, Optional, Tuple

import torch
from ding.rl_utils import ppo as ding_ppo
from ding.rl_utils.ppo import ppo_info, ppo_value_data, shape_fn_ppo
from torch import Tensor
from torch.distributions import Independent, Normal

from .check import check_leading, check_number, check_tensor
from .grpo import clip_surrogate, log_probs
from .kl import KL_TYPES, bounded, calculate_kl_div
from .log_prob import LogProbFunction, entropy, naive_method

__all__ = [
    'ppo_data', 'ppo_data_continuous', 'ppo_error', 'ppo_error_continuous', 'ppo_info', 'ppo_loss', 'ppo_policy_data',
    'ppo_policy_data_continuous', 'ppo_policy_error', 'ppo_policy_error_continuous', 'ppo_policy_loss',
    'ppo_value_data', 'ppo_value_error', 'shape_fn_ppo'
]

_POLICY, _VALUE = ['action', 'adv', 'weight', 'logit_pretrained'], ['value_new', 'value_old']
ppo_data = namedtuple(
    'ppo_data', ['logit_new', 'logit_old', 'action', *_VALUE, 'adv', 'return_', 'weight', 'logit_pretrained'],
    defaults=[None]
)
ppo_data_continuous = namedtuple(
    'ppo_data_continuous',
    ['mu_sigma_new', 'mu_sigma_old', 'action', *_VALUE, 'adv', 'return_', 'weight', 'logit_pretrained'],
    defaults=[None]
)
ppo_policy_data = namedtuple('ppo_policy_data', ['logit_new', 'logit_old', *_POLICY], defaults=[None])
ppo_policy_data_continuous = namedtuple(
    'ppo_policy_data_continuous', ['mu_sigma_new', 'mu_sigma_old', *_POLICY], defaults=[None]
)
_ALL = {*ppo_data._fields, *ppo_data_continuous._fields}
ppo_loss = namedtuple('ppo_loss', ['policy_loss', 'value_loss', 'entropy_loss', 'kl_div'])
ppo_policy_loss = namedtuple('ppo_policy_loss', ['policy_loss', 'entropy_loss', 'kl_div'])


def ppo_error(
        data: namedtuple,
        clip_ratio: float = 0.2,
        use_value_clip: bool = True,
        dual_clip: Optional[float] = None,
        kl_type: str = 'k1',
        entropy_bonus: bool = True,
        log_prob_fn: Optional[LogProbFunction] = None,
        mask_loss: Optional[bool] = None,
        mask_metrics: Optional[bool] = None,
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
        - value_new (:obj:`torch.FloatTensor`): :math:`(B, )` or :math:`(B, S)`, the shape of ``adv``
        - value_old (:obj:`torch.FloatTensor`): The same
        - return_ (:obj:`torch.FloatTensor`): The same
        - the others: As in ``ppo_policy_error``
    Raises:
        - ValueError: If a shape, a type or an option is wrong.
    """
    policy, info = ppo_policy_error(
        _fields(ppo_policy_data, data), clip_ratio, dual_clip, entropy_bonus, kl_type, log_prob_fn, mask_loss,
        mask_metrics
    )
    mask_loss = log_prob_fn is not None if mask_loss is None else mask_loss
    check_tensor('value_new', data.value_new, tuple(data.adv.shape), 'that of adv')
    value_loss = ppo_value_error(_fields(ppo_value_data, data), clip_ratio, use_value_clip, mask_loss)
    return ppo_loss(policy.policy_loss, value_loss, policy.entropy_loss, policy.kl_div), info


def ppo_policy_error(
        data: namedtuple,
        clip_ratio: float = 0.2,
        dual_clip: Optional[float] = None,
        entropy_bonus: bool = True,
        kl_type: str = 'k1',
        log_prob_fn: Optional[LogProbFunction] = None,
        mask_loss: Optional[bool] = None,
        mask_metrics: Optional[bool] = None,
) -> Tuple[namedtuple, namedtuple]:
    """
    Overview:
        Policy part of PPO, for discrete actions and, with S tokens a row, for language models.
    Arguments:
        - data (:obj:`namedtuple`): ``ppo_policy_data``; ``weight`` may be None, ``logit_pretrained`` left out.
        - clip_ratio (:obj:`float`): Clipping range of the probability ratio.
        - dual_clip (:obj:`Optional[float]`): Bound c > 1 of the ratio for negative advantages, equation 5 of \
            https://arxiv.org/abs/1912.09729.
        - entropy_bonus (:obj:`bool`): Whether ``entropy_loss`` is the mean entropy; else it is 0.
        - kl_type (:obj:`str`): Estimator of the KL to the pretrained policy, ``k1``, ``k2`` or ``k3``; for their \
            gradients see ``straight_through_kl``.
        - log_prob_fn (:obj:`Optional[LogProbFunction]`): Maps logits and sampled tokens to log-probabilities; None \
            uses a ``Categorical`` of all logits, as DI-engine does.
        - mask_loss (:obj:`Optional[bool]`): Whether positions of weight 0 are excluded from the means of the losses \
            and of the KL; None: only with a ``log_prob_fn``.
        - mask_metrics (:obj:`Optional[bool]`): The same for ``info``.
    Returns:
        - loss (:obj:`namedtuple`): ``ppo_policy_loss`` of differentiable 0-dim tensors; ``kl_div`` is 0 without a \
            pretrained policy.
        - info (:obj:`namedtuple`): ``ppo_info`` of Python floats: ``approx_kl`` mean of logp_old - logp_new, \
            ``clipfrac`` share of ratios outside the clipping range.
    Shapes:
        - logit_new (:obj:`torch.FloatTensor`): :math:`(B, N)`, N actions; :math:`(B, S, V)` for a language model; \
            :math:`(B, A, N)` for A agents
        - logit_old (:obj:`torch.FloatTensor`): The same
        - logit_pretrained (:obj:`torch.FloatTensor`): The same
        - action (:obj:`torch.LongTensor`): :math:`(B, )`, :math:`(B, S)` or :math:`(B, A)`
        - adv (:obj:`torch.FloatTensor`): :math:`(B, )`, :math:`(B, S)`, and :math:`(B, )` for agents
        - weight (:obj:`torch.FloatTensor`): Shape of ``adv``
    Raises:
        - ValueError: If a shape, a type or an option is wrong.
    """
    data = _fields(ppo_policy_data, data)
    _check_options(clip_ratio, dual_clip, kl_type)
    _check_discrete(data)
    mask_loss = log_prob_fn is not None if mask_loss is None else mask_loss
    mask_metrics = log_prob_fn is not None if mask_metrics is None else mask_metrics
    if log_prob_fn is not None:
        check_tensor('adv', data.adv, tuple(data.action.shape), 'that of action')
        logits = {name: getattr(data, name) for name in ('logit_new', 'logit_old', 'logit_pretrained')}
        logps = log_probs(logits, data.action, data.weight, log_prob_fn)
        own = _LogProbData(*logps, entropy(data.logit_new) if entropy_bonus else None, data.adv, data.weight)
        return _masked(lambda d: _log_prob_error(d, clip_ratio, dual_clip, kl_type), own, mask_loss, mask_metrics)

    def error(data: namedtuple) -> Tuple[namedtuple, namedtuple]:
        if data.adv.numel() == 0:
            return _nothing(data.logit_new)
        loss, info = ding_ppo.ppo_policy_error(_fields(ding_ppo.ppo_policy_data, data), clip_ratio, dual_clip)
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
        - value_new (:obj:`torch.FloatTensor`): :math:`(B, )` or :math:`(B, S)`
        - value_old (:obj:`torch.FloatTensor`): The same
        - return_ (:obj:`torch.FloatTensor`): The same
        - weight (:obj:`torch.FloatTensor`): The same
    Raises:
        - ValueError: If a shape, a type or an option is wrong.
    """
    _check_options(clip_ratio)
    data = _fields(ppo_value_data, data)
    check_leading('value_new', data.value_new, '(B, ) or (B, S)')
    shape = tuple(data.value_new.shape)
    for name in ('value_old', 'return_'):
        check_tensor(name, getattr(data, name), shape, 'that of value_new')
    check_tensor('weight', data.weight, shape, 'that of value_new', 'numbers', optional=True)
    if mask_loss:
        data = _select(data, _counted(data.weight, data.value_new))
    if data.value_new.numel() == 0:
        return data.value_new.sum()
    return ding_ppo.ppo_value_error(data, clip_ratio, use_value_clip)


def ppo_error_continuous(
        data: namedtuple,
        clip_ratio: float = 0.2,
        use_value_clip: bool = True,
        dual_clip: Optional[float] = None,
        kl_type: str = 'k1',
        mask_loss: bool = False,
        mask_metrics: bool = False,
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
    policy, info = ppo_policy_error_continuous(
        _fields(ppo_policy_data_continuous, data), clip_ratio, dual_clip, kl_type, mask_loss, mask_metrics,
        dual_clip_negative
    )
    check_tensor('value_new', data.value_new, tuple(data.adv.shape), 'that of adv')
    value_loss = ppo_value_error(_fields(ppo_value_data, data), clip_ratio, use_value_clip, mask_loss)
    return ppo_loss(policy.policy_loss, value_loss, policy.entropy_loss, policy.kl_div), info


def ppo_policy_error_continuous(
        data: namedtuple,
        clip_ratio: float = 0.2,
        dual_clip: Optional[float] = None,
        kl_type: str = 'k1',
        mask_loss: bool = False,
        mask_metrics: bool = False,
        dual_clip_negative: bool = False,
) -> Tuple[namedtuple, namedtuple]:
    """
    Overview:
        Policy part of PPO for actions with a diagonal normal distribution.
    Arguments:
        - data (:obj:`namedtuple`): ``ppo_policy_data_continuous``; ``weight`` may be None, ``logit_pretrained`` \
            (a dict of ``mu`` and ``sigma`` like the others) left out.
        - clip_ratio (:obj:`float`): Clipping range of the probability ratio.
        - dual_clip (:obj:`Optional[float]`): Bound c > 1 of the ratio, see ``dual_clip_negative``.
        - kl_type (:obj:`str`): As in ``ppo_policy_error``.
        - mask_loss (:obj:`bool`): Whether positions of weight 0 are excluded from the means of the losses and the KL.
        - mask_metrics (:obj:`bool`): The same for ``info``.
        - dual_clip_negative (:obj:`bool`): Whether ``dual_clip`` applies to negative advantages only, as in its \
            paper. The policy loss is then computed here, and ratios that overflow do not affect the gradient.
    Returns:
        - loss (:obj:`namedtuple`): As in ``ppo_policy_error``.
        - info (:obj:`namedtuple`): As in ``ppo_policy_error``.
    Shapes:
        - mu_sigma_new (:obj:`Dict[str, torch.FloatTensor]`): ``mu`` and ``sigma``, each :math:`(B, N)`, N numbers per \
            action
        - mu_sigma_old (:obj:`Dict[str, torch.FloatTensor]`): The same, or :math:`(B, )` for N = 1
        - logit_pretrained (:obj:`Dict[str, torch.FloatTensor]`): As ``mu_sigma_new``
        - action (:obj:`torch.FloatTensor`): :math:`(B, N)`
        - adv (:obj:`torch.FloatTensor`): :math:`(B, )`
        - weight (:obj:`torch.FloatTensor`): :math:`(B, )`
    Raises:
        - ValueError: If a shape, a type or an option is wrong.
    """
    data = _fields(ppo_policy_data_continuous, data)
    _check_options(clip_ratio, dual_clip, kl_type)
    _check_continuous(data)

    if dual_clip_negative:
        logps = [
            None if d is None else _normal(d).log_prob(data.action)
            for d in (data.mu_sigma_new, _two_dims(data.mu_sigma_old), data.logit_pretrained)
        ]
        own = _LogProbData(*logps, _normal(data.mu_sigma_new).entropy(), data.adv, data.weight)
        return _masked(lambda d: _log_prob_error(d, clip_ratio, dual_clip, kl_type), own, mask_loss, mask_metrics)

    def error(data: namedtuple) -> Tuple[namedtuple, namedtuple]:
        if len(data.adv) == 0:
            return _nothing(data.mu_sigma_new['mu'])
        loss, info = ding_ppo.ppo_policy_error_continuous(
            _fields(ding_ppo.ppo_policy_data_continuous, data), clip_ratio, dual_clip
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


def _log_prob_error(data: _LogProbData, clip_ratio: float, dual_clip: Optional[float],
                    kl_type: str) -> Tuple[namedtuple, namedtuple]:
    if data.adv.numel() == 0:
        return _nothing(data.logp_new)
    weight = torch.ones_like(data.adv) if data.weight is None else data.weight
    low, high = 1 - clip_ratio, 1 + clip_ratio
    ratio = bounded(data.logp_new - data.logp_old).exp()
    objective = clip_surrogate(ratio, data.adv, data.logp_new, low, high)
    if dual_clip is not None:
        objective = torch.where(data.adv < 0, torch.max(objective, dual_clip * data.adv), objective)
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


def _fields(kind: Any, data: namedtuple) -> namedtuple:
    """Convert ``data`` to another namedtuple with some of its fields, of this module or of DI-engine. The latter never
    gets the pretrained policy: DI-engine's release does not implement its KL."""
    missing = [f for f in kind._fields if not hasattr(data, f) and f != 'logit_pretrained']
    unknown = [f for f in data._fields if f not in _ALL]
    if missing or unknown:
        raise ValueError(
            f'{type(data).__name__} has {"no" if missing else "the unknown"} field {(missing or unknown)[0]}: must '
            f'have {", ".join(kind._fields)}'
        )
    own = kind.__module__ == __name__
    return kind(*(None if f == 'logit_pretrained' and not own else getattr(data, f, None) for f in kind._fields))


def _select(data: namedtuple, rows: Tensor) -> namedtuple:
    """Every field at the positions ``rows``, a mask of the leading shape."""

    def at(x: Any) -> Any:
        return {k: v[rows] for k, v in x.items()} if isinstance(x, dict) else None if x is None else x[rows]

    return type(data)(*map(at, data))


def _counted(weight: Optional[Tensor], like: Tensor) -> Tensor:
    return torch.ones_like(like, dtype=torch.bool) if weight is None else weight != 0


def _masked(
        error: Callable[[namedtuple], Tuple[namedtuple, namedtuple]], data: namedtuple, mask_loss: bool,
        mask_metrics: bool
) -> Tuple[namedtuple, namedtuple]:
    """Apply ``error`` to all positions or only to those that count, separately for the loss and for the metrics."""
    if not (mask_loss or mask_metrics):
        return error(data)
    inside = _select(data, _counted(data.weight, data.adv))
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


def _two_dims(mu_sigma: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """Reshape (B, ) to (B, 1), since DI-engine accepts both here."""
    return {k: v.unsqueeze(-1) if v.dim() == 1 else v for k, v in mu_sigma.items()}


def _check_options(clip_ratio: float, dual_clip: Optional[float] = None, kl_type: str = 'k1') -> None:
    check_number('clip_ratio', clip_ratio)
    if dual_clip is not None:
        check_number('dual_clip', dual_clip, 1, open_low=True)
    if kl_type not in KL_TYPES:
        raise ValueError(f'kl_type = {kl_type!r}: must be one of {KL_TYPES}')


def _check_discrete(data: namedtuple) -> None:
    check_leading('logit_new', data.logit_new, '(B, N) or (B, S, V)')
    shape, lead = tuple(data.logit_new.shape), tuple(data.logit_new.shape[:-1])
    check_tensor('logit_old', data.logit_old, shape, 'that of logit_new')
    check_tensor('logit_pretrained', data.logit_pretrained, shape, 'that of logit_new', optional=True)
    check_tensor('action', data.action, lead, 'that of logit_new without the last', 'int64')
    check_leading('adv', data.adv, '(B, ) or (B, S)')
    expected = lead[:data.adv.dim()]  # (B, ) for (B, A) agents
    check_tensor('adv', data.adv, expected, '(B, ) or (B, S)')
    check_tensor('weight', data.weight, expected, 'that of adv', 'numbers', optional=True)


def _check_continuous(data: namedtuple) -> None:
    check_leading('action', data.action, '(B, N)')
    shape = tuple(data.action.shape)
    for name in ('mu_sigma_new', 'mu_sigma_old', 'logit_pretrained'):
        d = getattr(data, name)
        if d is None and name == 'logit_pretrained':
            continue
        if not isinstance(d, dict) or not {'mu', 'sigma'} <= set(d):
            raise ValueError(f'{name} of {type(d).__name__}: must be a dict of mu and sigma')
        flat = name == 'mu_sigma_old' and shape[1] == 1 and isinstance(d['mu'], Tensor) and d['mu'].dim() == 1
        for part in ('mu', 'sigma'):
            check_tensor(f'{name}[{part!r}]', d[part], shape[:1] if flat else shape, '(B, )' if flat else '(B, N)')
    check_tensor('adv', data.adv, shape[:1], '(B, )')
    check_tensor('weight', data.weight, shape[:1], '(B, )', 'numbers', optional=True)
