"""What the losses of PPO for discrete and for continuous actions share."""
from collections import namedtuple
from types import ModuleType
from typing import Any, Callable, Optional, Tuple

import torch
from torch import Tensor

from ding_grpo.rl_utils.check import check_choice, check_floats, check_number, check_tensor
from ding_grpo.rl_utils.kl import KL_TYPES, bounded, calculate_kl_div
from ding_grpo.rl_utils.surrogates import clip_surrogate

from .fields import part, ppo_value_data, read, select

ppo_loss = namedtuple('ppo_loss', ['policy_loss', 'value_loss', 'entropy_loss', 'kl_div'])
ppo_policy_loss = namedtuple('ppo_policy_loss', ['policy_loss', 'entropy_loss', 'kl_div'])
ppo_info = namedtuple('ppo_info', ['approx_kl', 'clipfrac'])


def of_ding() -> ModuleType:
    """DI-engine's losses, imported with the first call: the others of this package need torch alone."""
    from ding.rl_utils import ppo
    return ppo


# A batch as numbers per position; each field has the shape of adv, or (M, ) for the M positions that count.
LogProbData = namedtuple('LogProbData', ['logp_new', 'logp_old', 'logp_pretrained', 'entropy', 'adv', 'weight'])


def log_prob_error(
        data: LogProbData,
        clip_ratio: float,
        dual_clip: Optional[float],
        kl_type: str,
        dual_clip_negative: bool = True
) -> Tuple[namedtuple, namedtuple]:
    if data.adv.numel() == 0:
        return nothing(data.logp_new)
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


def masked(
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


def nothing(empty: Tensor) -> Tuple[namedtuple, namedtuple]:
    """The loss of an empty batch: 0, with a gradient of 0."""
    zero = empty.sum()
    return ppo_policy_loss(zero, zero, zero), ppo_info(0., 0.)


def error_of_ding(
        data: namedtuple, like: Tensor, log_prob: Callable[[Any], Tensor], clip_ratio: float,
        dual_clip: Optional[float], kl_type: str
) -> Tuple[namedtuple, namedtuple]:
    """DI-engine's policy loss of the data of its name, with the KL to the pretrained policy. ``log_prob`` computes the
    log-probabilities of the actions under a policy, such as the new one, the first field."""
    if data.adv.numel() == 0:
        return nothing(like)
    ding, name = of_ding(), type(data).__name__
    loss, info = getattr(ding, name.replace('data', 'error'))(part(getattr(ding, name), data), clip_ratio, dual_clip)
    kl_div = loss.policy_loss.new_zeros(())
    if data.logit_pretrained is not None:
        kl_div = calculate_kl_div(log_prob(data[0]) - log_prob(data.logit_pretrained), kl_type)
    return ppo_policy_loss(loss.policy_loss, loss.entropy_loss, kl_div), info


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
    Shapes:
        - value_new (:obj:`torch.FloatTensor`): Any shape, such as :math:`(B, )` or :math:`(B, S)`
        - value_old, return_, weight (:obj:`torch.FloatTensor`): The same
    """
    check_options(clip_ratio)
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
    return of_ding().ppo_value_error(data, clip_ratio, use_value_clip)


def check_options(clip_ratio: float, dual_clip: Optional[float] = None, kl_type: str = 'k1') -> None:
    check_number('clip_ratio', clip_ratio)
    if dual_clip is not None:
        check_number('dual_clip', dual_clip, 1)
    check_choice('kl_type', kl_type, KL_TYPES)
