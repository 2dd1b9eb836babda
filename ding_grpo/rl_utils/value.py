"""Values of states: generalized advantage estimation, and the loss of a critic."""
from collections import namedtuple
from typing import Optional, Tuple

import torch
from torch import Tensor

from .advantage import return_to_go
from .check import check_leading, check_number, check_tensor
from .ppo_losses.fields import ppo_value_data
from .reduce import masked_mean, reduce_loss

value_info = namedtuple('value_info', ['value_clipfrac'])


def gae_advantage(
        reward: Tensor,
        value: Tensor,
        weight: Tensor,
        discount_factor: float = 0.99,
        gae_lambda: float = 0.95,
        final_value: Optional[Tensor] = None,
) -> Tuple[Tensor, Tensor]:
    """
    Overview:
        Generalized advantage estimation, https://arxiv.org/abs/1506.02438, equation 16: the sum of later temporal \
        differences, A_t = d_t + discount_factor gae_lambda A_(t + 1) with d_t = r_t + discount_factor V_(t + 1) - V_t.
    Arguments:
        - weight (:obj:`torch.FloatTensor`): 1 on steps, 0 after a row's end, where reward and value do not count.
        - gae_lambda (:obj:`float`): 0 for temporal differences of one step, 1 for returns minus values.
        - final_value (:obj:`Optional[torch.FloatTensor]`): Value of the state after the last step of each row: 0 for \
            rows that have ended, the critic's value for rows that a time limit truncated. None for zeros.
    Returns:
        - return_ (:obj:`torch.FloatTensor`): ``adv`` + ``value``, the target of the critic, 0 after a row's end.
    Shapes:
        - reward, value, weight, adv, return_ (:obj:`torch.FloatTensor`): :math:`(B, S)`
        - final_value (:obj:`torch.FloatTensor`): :math:`(B, )`
    """
    check_leading('reward', reward, '(B, S)')
    shape = tuple(reward.shape)
    check_tensor('value', value, shape, 'that of reward')
    check_tensor('weight', weight, shape, 'that of reward', 'numbers')
    check_tensor('final_value', final_value, shape[:1], '(B, )', optional=True)
    for name, factor in (('discount_factor', discount_factor), ('gae_lambda', gae_lambda)):
        check_number(name, factor, high=1)
    counted = weight != 0
    # in float64, because differences of large values lose precision
    reward_, value_ = (x.double().masked_fill(~counted, 0) for x in (reward, value))
    following = torch.cat([value_[:, 1:], value_.new_zeros(shape[0], 1)], dim=1)[:, :shape[1]]  # (B, S)
    if final_value is not None:
        rows = counted.any(1).nonzero().squeeze(1)
        last = shape[1] - 1 - counted.long().flip(1).argmax(1)[rows] if shape[1] else rows
        following[rows, last] = final_value.double()[rows]
    difference = (reward_ + discount_factor * following - value_).masked_fill(~counted, 0)
    adv = return_to_go(difference, discount_factor * gae_lambda).masked_fill(~counted, 0)
    return adv.to(reward.dtype), (adv + value_).to(reward.dtype)


def value_error(
        data: namedtuple,
        *,
        value_clip: Optional[float] = None,
        reduction: str = 'token',
        max_length: Optional[int] = None,
        num_tokens: Optional[float] = None,
) -> Tuple[Tensor, value_info]:
    """
    Overview:
        Loss of a critic: half the squared error to the return. With ``value_clip``, the larger error of the value and \
        of the clipped value counts, as in PPO.
    Arguments:
        - data (:obj:`namedtuple`): ``ppo_value_data``. ``weight=None``: every step counts.
        - value_clip (:obj:`Optional[float]`): Clipping range of the value's change since sampling. None: no clipping.
        - reduction (:obj:`str`): As in ``reduce_loss``, and the arguments after it.
    Returns:
        - info (:obj:`value_info`): ``value_clipfrac``, the share of steps whose clipped error is the larger one.
    Shapes:
        - value_new, value_old, return_, weight (:obj:`torch.FloatTensor`): :math:`(B, S)`
    """
    value_new, value_old, return_, weight = ppo_value_data(*data)
    check_leading('value_new', value_new, '(B, S)')
    for name, x in (('value_old', value_old), ('return_', return_)):
        check_tensor(name, x, tuple(value_new.shape), 'that of value_new')
    check_tensor('weight', weight, tuple(value_new.shape), 'that of value_new', 'numbers', optional=True)
    if value_clip is not None:
        check_number('value_clip', value_clip, open_low=True)
    weight = torch.ones_like(value_new) if weight is None else weight
    # Padding may contain any value; it must reach neither the loss nor a gradient.
    new, old, target = (x.masked_fill(weight == 0, 0) for x in (value_new, value_old, return_))
    error, clipped = (new - target) ** 2, torch.zeros_like(new)
    if value_clip is not None:
        clipped = (old + (new - old).clamp(-value_clip, value_clip) - target) ** 2
    loss = reduce_loss(torch.maximum(error, clipped) / 2, weight, reduction, max_length, num_tokens)
    return loss, value_info(masked_mean((clipped > error).to(new.dtype), weight).item())


def explained_variance(value: Tensor, return_: Tensor, weight: Tensor) -> float:
    """Share of the variance of the returns (B, S) that the values explain, 1 - Var(return_ - value) / Var(return_): 1
    for a perfect critic, 0 for a constant, negative for a harmful one. NaN if all returns are equal."""
    counted = weight != 0
    target, error = return_[counted].double(), (return_ - value)[counted].double()
    variance = target.var(unbiased=False) if target.numel() > 0 else target.sum()
    return float('nan') if variance == 0 else (1 - error.var(unbiased=False) / variance).item()
