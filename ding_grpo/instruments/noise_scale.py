"""
The noise scale of https://arxiv.org/abs/1812.06162: in how many groups the gradient of an update is as much signal as
noise. Departures:

1. An example is a group. In the weights, the halves of each group are compared too, which tells how much of the noise
   comes from the problems and how much from the sampled completions.
2. In the space of log-probabilities the gradients of two groups are orthogonal, whatever they teach, because no token
   belongs to both. So the estimate that needs no model compares groups in another space: a table of one number for each
   token id, which is added to all log-probabilities of that id.
"""
from typing import Dict, List

import torch
from ding.worker import LearnerHook
from torch import Tensor

from ding_grpo.data.batch import Batch
from ding_grpo.learn.observer import Observer, View
from ding_grpo.learn.update import Updater
from ding_grpo.logs.hook import CallHook

from .shadow_picture import show_shadow
from .weight_gradients import dot, weight_gradients


class NoiseScale(Observer):
    """The noise scales of the groups of an update, for the loss before the first step, when all ratios are 1."""

    def __init__(self, view: View) -> None:
        self._actor, self._updater, self._every = view.actor, view.updater, view.cfg.instruments.noise_every

    def hooks(self) -> List[LearnerHook]:
        return [CallHook('shadow_picture', 110, position='after_run', function=show_shadow)]

    def before(self, update: int, batch: Batch, learned: Batch) -> Dict[str, float]:
        if len(learned.group.unique()) < 2:
            return {}
        updater = self._updater
        with self._actor.aside():
            logp = updater.logp_old(learned, learned.logp_old).detach().clone().requires_grad_()
            slope, = torch.autograd.grad(updater.loss(learned, logp, with_info=False)[0], logp)  # (B, S)
            found = {} if learned.action.is_floating_point() else noise_of_table(learned, slope)
            if self._every > 0 and update % self._every == 0:
                found.update(noise_of_weights(learned, slope, updater))
        return found


def noise_scale(groups: int, squares: float, whole: float) -> Dict[str, float]:
    """
    Estimates from P groups, at least 2. The gradient g_p of a group is P times its part of the batch's gradient g, so
    that g is the mean of g_p. ``squares`` is the sum over groups of the squared norm of their part, ``whole`` is |g|^2.

    - ``variance``: sum |g_p - g|^2 / (P - 1), the trace of the covariance of a group's gradient.
    - ``signal``: |g|^2 - variance / P, the squared norm of the true gradient; may be negative.
    - ``scale``: variance / signal, in groups; absent if the signal is not positive.
    """
    variance = (groups ** 2 * squares - groups * whole) / (groups - 1)
    signal = whole - variance / groups
    found = dict(variance=variance, signal=signal)
    if signal > 0:
        found['scale'] = variance / signal
    return found


def noise_of_table(batch: Batch, slope: Tensor) -> Dict[str, float]:
    """The noise scale in a table of one number for each token id, discrete action or tuple of discrete actions, of at
    least two groups. ``slope`` (B, S) is the gradient of the loss with respect to log-probabilities."""
    numbers, group = batch.group.unique(return_inverse=True)
    counted = batch.weight != 0  # (B, S)
    ids, column = batch.action[counted].unique(return_inverse=True, dim=0)
    cell = group.unsqueeze(1).expand_as(counted)[counted] * len(ids) + column
    table = slope.new_zeros(len(numbers) * len(ids), dtype=torch.double)
    table = table.index_add(0, cell, slope[counted].double()).view(len(numbers), -1)  # (P, number of ids)
    found = noise_scale(len(numbers), table.square().sum().item(), table.sum(0).square().sum().item())
    return {f'noise/table/{name}': value for name, value in found.items()}


def noise_of_weights(batch: Batch, slope: Tensor, updater: Updater) -> Dict[str, float]:
    """The noise scale in the weights, by one forward and backward pass, of half a group at a time. The halves of a
    group are its rows of even and of odd number, and h_p, h'_p their parts of g_p. ``within``, the mean of |h_p -
    h'_p|^2 / ``variance``, is the share of the variance that the completions of one problem have; absent without a
    variance."""
    numbers, whole = batch.group.unique(), [torch.zeros_like(p) for p in updater.trained]
    squares = differences = 0.0
    for number in numbers:
        of_halves = []
        for half in (0, 1):
            rows = ((batch.group == number) & (batch.row % 2 == half)).nonzero().squeeze(1)
            of_halves += weight_gradients(slope[rows].unsqueeze(0), batch.take(rows), updater)
        both = [x + y for x, y in zip(*of_halves)]
        squares += dot(both, both)
        differences += sum(dot(h, h) for h in of_halves) - 2 * dot(*of_halves)
        for total, x in zip(whole, both):
            total += x
    found = noise_scale(len(numbers), squares, dot(whole, whole))
    if found['variance'] > 0:
        found['within'] = len(numbers) * differences / found['variance']
    return {f'noise/weights/{name}': value for name, value in found.items()}
