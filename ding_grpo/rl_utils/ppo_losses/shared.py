"""What the losses of PPO for discrete and for continuous actions share."""
from collections import namedtuple
from typing import Callable, Optional, Tuple

import torch
from torch import Tensor

from ding_grpo.rl_utils.check import check_choice, check_floats, check_number, check_tensor, widened
from ding_grpo.rl_utils.kl import KL_TYPES, bounded, calculate_kl_div
from ding_grpo.rl_utils.surrogates import clip_surrogate

from .fields import ppo_value_data, read, select

ppo_loss = namedtuple('ppo_loss', ['policy_loss', 'value_loss', 'entropy_loss', 'kl_div'])
ppo_policy_loss = namedtuple('ppo_policy_loss', ['policy_loss', 'entropy_loss', 'kl_div'])
ppo_info = namedtuple('ppo_info', ['approx_kl', 'clipfrac'])

# A batch as numbers per position; each field has the shape of adv, or (M, ) for the M positions that count. Those of
# the policy may have one dimension more, for agents. ``log_ratio`` is that to the pretrained policy.
LogProbData = namedtuple('LogProbData', ['logp_new', 'logp_old', 'log_ratio', 'entropy', 'adv', 'weight'])


def log_prob_error(
        data: LogProbData,
        clip_ratio: float,
        dual_clip: Optional[float],
        kl_type: str,
        dual_clip_negative: bool = True
) -> Tuple[namedtuple, namedtuple]:
    weight = torch.ones_like(data.adv) if data.weight is None else data.weight
    low, high = 1 - clip_ratio, 1 + clip_ratio
    ratio, entropy = bounded(widened(data.logp_new - data.logp_old)).exp(), data.entropy
    if ratio.shape != data.adv.shape:  # the mean over agents, as in DI-engine
        ratio, entropy = ratio.mean(1), None if entropy is None else entropy.mean(1)
    objective = clip_surrogate(ratio, data.adv, data.logp_new, low, high)
    if dual_clip is not None:
        bound = torch.max(objective, dual_clip * data.adv)
        objective = torch.where(data.adv < 0, bound, objective) if dual_clip_negative else bound
    zero = objective.new_zeros(())
    loss = ppo_policy_loss(
        policy_loss=(-objective * weight).mean(),
        entropy_loss=zero if entropy is None else (entropy * weight).mean(),
        kl_div=zero if data.log_ratio is None else calculate_kl_div(data.log_ratio, kl_type),
    )
    with torch.no_grad():
        info = ppo_info(
            approx_kl=(data.logp_old - data.logp_new).mean().item(),
            clipfrac=((ratio < low) | (ratio > high)).float().mean().item(),
        )
    return loss, info


def masked(
        error: Callable[[namedtuple], Tuple[namedtuple, namedtuple]], data: namedtuple, mask_loss: bool,
        mask_metrics: bool
) -> Tuple[namedtuple, namedtuple]:
    """Apply ``error`` to all positions or only to those that count, separately for the loss and for the metrics. The
    loss of no position is 0, with a gradient of 0."""

    def of(positions: namedtuple) -> Tuple[namedtuple, namedtuple]:
        if positions.adv.numel() > 0:
            return error(positions)
        policy = positions[0]
        zero = (policy['mu'] if isinstance(policy, dict) else policy).sum()
        return ppo_policy_loss(zero, zero, zero), ppo_info(0., 0.)

    if data.weight is None or not (mask_loss or mask_metrics) or (data.weight != 0).all():
        return of(data)
    inside = select(data, data.weight != 0)
    loss, info = of(inside if mask_loss else data)
    if mask_loss != mask_metrics:
        with torch.no_grad():
            _, info = of(inside if mask_metrics else data)
    return loss, info


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
    new, old, target, weight = data
    if new.numel() == 0:
        return new.sum()
    error = (target - new) ** 2
    if use_value_clip:
        error = torch.max(error, (target - (old + (new - old).clamp(-clip_ratio, clip_ratio))) ** 2)
    return 0.5 * (error if weight is None else error * weight).mean()


def check_options(clip_ratio: float, dual_clip: Optional[float] = None, kl_type: str = 'k1') -> None:
    check_number('clip_ratio', clip_ratio)
    if dual_clip is not None:
        check_number('dual_clip', dual_clip, 1)
    check_choice('kl_type', kl_type, KL_TYPES)
