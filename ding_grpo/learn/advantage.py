"""Advantages: compares the rows of a batch with the rows of their group. What changes rewards and advantages."""
from dataclasses import replace
from typing import Callable, Dict, Iterator, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from ding_common import ConfigError
from ding_grpo.config.sections.advantage import UNGROUPED_METHODS
from ding_grpo.data.batch import Batch, map_tensors
from ding_grpo.data.trajectories import first_rows
from ding_grpo.rl_utils import (
    TOKEN_ADVANTAGE_METHODS, anchor_advantage, divergent_rows, far_rows, group_advantage, high_entropy, kl_estimate,
    masked_mean, return_to_go, sampler_correction, step_advantage, token_advantage, tree_advantage
)

# Methods that can give 0 to every row of a group with unequal rewards.
_OFTEN_ZERO = ('pass_k', 'max_rl')
# Values of ``learn.advantage`` that compare no rows of a group.
UNGROUPED = ('gae', 'none')


class Advantage(NamedTuple):
    """How the rows of a batch are compared. The fields are from the section ``policy.learn``, except the discount."""
    method: str
    compare: str = 'outcome'
    discount_factor: float = 1.0
    extend_truncated: bool = False
    part_weights: Optional[Dict[str, float]] = None
    by_turn: bool = False  # whether a turn is one step, as in environments with several turns
    anchor_weight: float = 1.0
    by_trajectory: str = 'whole'

    def of(self, batch: Batch) -> Tensor:
        """The advantages of whole groups: (B, ) for ``outcome`` with a method of ``group_advantage``, else (B, S). They
        are 0 after a row's end, and for rows that could not be scored, which are dropped from their groups."""
        if batch.episode is not None:
            first, of_row = first_rows(batch.group, batch.episode)
            if self.compare != 'outcome' and len(first) < len(batch):
                raise ConfigError(
                    f'policy.learn.advantage = {self.compare!r}: an episode has {int(of_row.bincount().max())} texts, '
                    "and turns are compared in episodes of one text only. Use 'outcome', or let the agent go on with "
                    'its conversation: its messages must begin with all earlier ones, unchanged.'
                )
            adv = self.of(replace(batch.take(first), episode=None))[of_row]
            return adv / of_row.bincount()[of_row] if self.by_trajectory == 'divided' else adv
        rows, scored = (~batch.failed).nonzero().squeeze(1), batch.without(batch.failed)
        if self.part_weights is not None:
            # compare each part separately; divide the weighted sum by its deviation over the batch (its mean is 0)
            adv = sum(self._by_part(scored))
            adv = adv / (adv.std() + 1e-4) if len(adv) > 1 else adv
        elif self.method in TOKEN_ADVANTAGE_METHODS:
            adv = self._tokens(scored)
        else:
            if self.compare == 'anchor':
                _check_anchors(scored)
            adv = self._compared(scored)
        of_all = adv.new_zeros(batch.weight.shape[:adv.dim()])
        of_all[(rows, *(slice(n) for n in adv.shape[1:]))] = adv
        return of_all

    def equal(self, batch: Batch) -> bool:
        """Whether every row of one group has the advantage 0 in the group's own comparison, so that nothing can be
        learned. This is the case if all compared values are equal; with ``pass_k`` also if the best two rows are equal,
        with ``max_rl`` if the mean is not positive, and with ``remax`` if all rows return what the greedy one does."""
        if batch.episode is not None:
            first, _ = first_rows(batch.group, batch.episode)
            return self.equal(replace(batch.take(first), episode=None))
        batch = batch.without(batch.failed)
        often_zero = self.method in _OFTEN_ZERO
        if self.compare in UNGROUPED or self.method in UNGROUPED_METHODS:
            return False
        if self.method == 'remax':
            return not self._tokens(batch).any()
        if self.part_weights is None and self.compare == 'outcome' and self.discount_factor == 1 and not often_zero:
            returns = batch.reward.sum(1)  # a faster way for the usual case
            return len(returns) == 0 or bool((returns == returns[0]).all())
        # these methods give exactly 0 if a group's values are equal, and do not depend on other groups
        compared = self._replace(method=self.method if often_zero else 'no_std')
        if self.part_weights is not None:
            return not any(adv.any() for adv in compared._by_part(batch))
        return not compared._compared(batch).any()

    def _compared(self, batch: Batch) -> Tensor:
        """The advantages of ``compare``, (B, ) or (B, S); with ``by_turn`` computed for turns."""
        steps = batch.turns() if self.by_turn and self.compare not in ('gae', 'tree') else batch
        adv = _COMPARISONS[self.compare](self, steps)
        if adv.dim() == 1 or steps is batch:
            return adv
        return adv.gather(1, batch.turn.clamp(min=0)) * (batch.weight != 0)

    def _by_part(self, batch: Batch) -> Iterator[Tensor]:
        """Weighted advantages of each reward part, among the rows to which it applies, (B, ) each."""
        length = batch.weight.sum(1)
        for name, part in batch.reward_parts.items():
            applies = ~part.isnan()
            adv = group_advantage(part[applies], batch.group[applies], self.method, length=length[applies])
            yield torch.zeros(len(part)).masked_scatter(applies, self.part_weights[name] * adv)

    def _outcome(self, batch: Batch) -> Tensor:
        returns, _ = self._returns(batch)
        return group_advantage(returns[:, 0], batch.group, self.method, length=batch.weight.sum(1))

    def _none(self, batch: Batch) -> Tensor:
        """For learning without a reward."""
        return torch.zeros(len(batch))

    def _tokens(self, batch: Batch) -> Tensor:
        returns, _ = self._returns(batch)
        return token_advantage(returns, batch.weight, self.method, batch.group, batch.score_norm, batch.baseline)

    def _gae(self, batch: Batch) -> Tensor:
        """The advantages of the critic, normalised over all steps of the batch unless the method is 'no_std'."""
        counted = batch.weight != 0  # (B, S)
        if self.method == 'no_std' or not counted.any():
            return batch.adv
        adv = batch.adv[counted]
        adv = group_advantage(adv, torch.zeros_like(adv, dtype=torch.long), 'grpo')
        return torch.zeros_like(batch.adv).masked_scatter(counted, adv)

    def _return_to_go(self, batch: Batch) -> Tensor:
        """Compares all steps of a group with each other."""
        returns, _ = self._returns(batch)
        counted = batch.weight != 0  # (B, S)
        of_step = batch.group.unsqueeze(1).expand_as(counted)[counted]  # (M, ): the group of each step
        adv = group_advantage(returns[counted], of_step, self.method, length=torch.ones_like(of_step))
        return torch.zeros_like(returns).masked_scatter(counted, adv)

    def _return_to_go_by_step(self, batch: Batch) -> Tensor:
        """Compares only the same step of each row, see ``step_advantage``."""
        returns, tail = self._returns(batch)
        returns = torch.where(batch.weight != 0, returns, tail)
        return step_advantage(returns, batch.weight, batch.group, self.method)

    def _anchor(self, batch: Batch) -> Tensor:
        """The outcome's advantage, and that among the rows in the same state, see ``anchor_advantage``."""
        returns, _ = self._returns(batch)
        at_anchor = anchor_advantage(returns, batch.anchor, batch.group)
        return (self._outcome(batch).unsqueeze(1) + self.anchor_weight * at_anchor) * (batch.weight != 0)

    def _tree(self, batch: Batch) -> Tensor:
        """Compares the rows before and after each place where they divide, see ``tree_advantage``."""
        returns, _ = self._returns(batch)
        return tree_advantage(returns[:, 0], batch.leader, batch.group, self.method) * (batch.weight != 0)

    def _returns(self, batch: Batch) -> Tuple[Tensor, Tensor]:
        """The discounted returns from each step on (B, S), and the return after a row's end (B, 1). The latter is 0 or,
        with ``extend_truncated`` in rows that a time limit cut, r / (1 - discount): the last reward r repeated forever.
        """
        # In float64: otherwise rounding errors of equal returns would be divided by their own deviation.
        reward, dtype = batch.reward.double(), batch.reward.dtype
        tail = torch.zeros_like(reward[:, :1])
        if self.extend_truncated:
            rows = batch.truncated.nonzero().squeeze(1)
            last = batch.length[rows] - 1
            reward[rows, last] /= 1 - self.discount_factor
            tail[rows, 0] = reward[rows, last]
        return return_to_go(reward, self.discount_factor).to(dtype), tail.to(dtype)


_COMPARISONS: Dict[str, Callable[[Advantage, Batch], Tensor]] = dict(  # by ``learn.advantage``
    outcome=Advantage._outcome,
    return_to_go=Advantage._return_to_go,
    return_to_go_by_step=Advantage._return_to_go_by_step,
    anchor=Advantage._anchor,
    tree=Advantage._tree,
    gae=Advantage._gae,
    none=Advantage._none
)


def with_kl_in_reward(batch: Batch, beta: float, kl_type: str) -> Batch:
    """Subtract ``beta`` times the estimated KL of the sampling policy to the reference from each step's reward."""
    counted = batch.weight != 0  # (B, S)
    logp, ref = (x.masked_fill(~counted, 0) for x in (batch.logp_old, batch.logp_ref))
    return replace(batch, reward=batch.reward - beta * kl_estimate(logp, ref, kl_type))


def of_high_entropy(batch: Batch, entropy: Tensor, share: float) -> Batch:
    """Set the advantages of all tokens to 0 but those of the ``share`` in (0, 1] with the highest entropy (B, S)."""
    chosen = high_entropy(entropy, batch.weight, share)
    return _with_advantages(batch, lambda adv: adv * chosen)


def corrected(batch: Batch, logp: Tensor, cfg: Dict) -> Tuple[Batch, Dict[str, float]]:
    """The batch corrected for the difference between the policy that sampled it and the one that learns from it, by
    ``learn.off_policy``; ``logp`` (B, S) is under the policy at the start of the update. With
    ``correction``, ratios are relative to it. Returns the batch and metrics."""
    cfg, metrics, given = cfg.off_policy, {}, (logp, batch.logp_old, batch.weight)
    if cfg.mask is not None or cfg.row_mask is not None:
        before = batch = _with_advantages(batch, lambda adv: adv)
        if cfg.mask is not None:
            far = far_rows(*given, cfg.mask).unsqueeze(1)  # (B, 1)
            batch = _with_advantages(batch, lambda adv: adv.masked_fill(far & (adv < 0), 0))
        if cfg.row_mask is not None:
            divergent = divergent_rows(*given, cfg.row_mask, cfg.row_mask_type).unsqueeze(1)  # (B, 1)
            batch = _with_advantages(batch, lambda adv: adv.masked_fill(divergent, 0))
        metrics['off_policy_masked'] = masked_mean((batch.adv != before.adv).float(), batch.weight).item()
    if cfg.correction is not None:
        factor, cut = sampler_correction(*given, cfg.correction, cfg.bound, cfg.low, cfg.outside)
        metrics.update(correction_mean=masked_mean(factor, batch.weight).item(), correction_cut=cut)
        batch = replace(_with_advantages(batch, lambda adv: adv * factor), logp_first=logp)
    return batch, metrics


def _with_advantages(batch: Batch, function: Callable[[Tensor], Tensor]) -> Batch:
    """The batch with ``function`` applied to its advantages (B, S), and to those of shadow losses."""

    def of_steps(adv: Tensor) -> Tensor:
        return function(adv.unsqueeze(1).expand_as(batch.weight) if adv.dim() == 1 else adv)

    return replace(batch, adv=of_steps(batch.adv), other_adv=map_tensors(of_steps, batch.other_adv))


def _check_anchors(batch: Batch) -> None:
    if (batch.turn > 0).any() and not (batch.anchor[:, 1:] >= 0).any():
        raise ConfigError(
            "policy.learn.advantage = 'anchor': no reply of the task has an anchor, so no states can be compared. Set "
            "Reply.anchor, or use 'return_to_go_by_step' or 'outcome'."
        )
