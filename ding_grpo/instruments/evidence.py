"""What the data of an update shows: pure functions from a batch to figures, from which ``causes.py`` names causes."""
import math
from typing import Any, Dict, List, Optional

import torch
from torch import Tensor, nn

from ding_grpo.data.batch import Batch
from ding_grpo.model.sharding import whole

RANGE = 1.2  # ratios outside [1 / 1.2, 1.2] count as out of range: the usual clipping range, on both sides


def of_samples(batch: Batch, reward_weights: Optional[Dict[str, float]] = None) -> Dict[str, Any]:
    """Figures of groups as they were sampled, empty without rows: numbers of ``rows`` that were scored, of ``cut``
    rows, of ``groups`` with at least two such rows, of those with ``equal`` rewards, of those with ``identical`` rows,
    and of the latter those that do not have the highest reward, unless all rewards are equal (``copies``); ``low``,
    ``high``, ``mean`` and ``std`` of the rewards; ``parts``, lowest, highest and mean weighted value of each reward
    part."""
    scored = ~batch.failed
    if not scored.any():
        return {}
    reward = batch.reward.sum(1)[scored]  # (N, )
    _, group, count = batch.group[scored].unique(return_inverse=True, return_counts=True)  # (N, ), (P, )
    best = reward == reward.max() if (reward != reward[0]).any() else torch.zeros_like(reward, dtype=torch.bool)
    worse = torch.zeros(len(count)).index_add(0, group, best.float()) == 0  # (P, )
    same = _equal(_rows(batch)[scored], group, len(count)) & (count > 1)
    parts = {}
    for name, part in batch.reward_parts.items():
        value = (1.0 if reward_weights is None else reward_weights[name]) * part[scored & ~part.isnan()]
        if len(value) > 0:
            parts[name] = [value.min().item(), value.max().item(), value.mean().item()]
    return dict(
        rows=len(reward),
        cut=int(batch.truncated[scored].sum()),
        groups=int((count > 1).sum()),
        equal=int((_equal(reward.unsqueeze(1), group, len(count)) & (count > 1)).sum()),
        identical=int(same.sum()),
        copies=int((same & worse).sum()),
        low=reward.min().item(),
        high=reward.max().item(),
        mean=reward.mean().item(),
        std=reward.std(unbiased=False).item(),
        parts=parts,
    )


def _rows(batch: Batch) -> Tensor:
    """(B, K): all numbers that two rows share if they are copies."""
    own = (batch.weight != 0).reshape(*batch.weight.shape, *[1] * (batch.action.dim() - 2))
    return torch.cat([batch.length.unsqueeze(1).double(), (batch.action * own).flatten(1).double()], 1)


def _equal(rows: Tensor, group: Tensor, number: int) -> Tensor:
    """(P, ): whether all rows (N, K) of a group are the same."""
    first = torch.full((number, ), len(group)).scatter_reduce(0, group, torch.arange(len(group)), 'amin')
    different = (rows != rows[first[group]]).any(1)  # (N, )
    return torch.zeros(number).index_add(0, group, different.float()) == 0


def of_mask(batch: Batch) -> Dict[str, int]:
    """Where a batch to learn from has a weight: ``outside``, the number of steps with a weight after their row's end;
    ``inside``, that of steps with a weight before it; ``steps``, the number of all steps before it."""
    before_end = torch.arange(batch.weight.shape[1]) < batch.length.unsqueeze(1)  # (B, S)
    counted = batch.weight != 0
    return dict(
        outside=int((counted & ~before_end).sum()),
        inside=int((counted & before_end).sum()),
        steps=int(before_end.sum()),
    )


def of_change(batch: Batch, before: Tensor, entropy: Tensor, fresh: Tensor, after: Tensor) -> Dict[str, float]:
    """
    What an update did to the log-probabilities (B, S) of rows that it learned from, over the ``steps`` with a weight:

    - ``moved``: the mean absolute change in nats.
    - ``outside``: the share whose ratio leaves [1 / RANGE, RANGE].
    - ``follow`` in [-1, 1]: the sum of advantage times change over the sum of its absolute values, positive if the
      update did what the advantages ask for; absent if all are 0.
    - ``surprise`` and ``squares``: the sum of -log p - entropy and of its square before the update, over the ``fresh``
      ones of these steps, in rows (B, 1) that the weights before it sampled. The mean of a term is 0 if the policy
      sampled the action.
    """
    counted = batch.weight != 0
    adv = (batch.adv.unsqueeze(1) if batch.adv.dim() == 1 else batch.adv).expand_as(counted)[counted].double()  # (M, )
    change = (after - before)[counted].double()
    surprise = (-before - entropy)[counted & fresh].double()
    wanted = adv * change
    return dict(
        steps=len(change),
        moved=change.abs().mean().item(),
        outside=(change.abs() > math.log(RANGE)).double().mean().item(),
        **(dict(follow=(wanted.sum() / wanted.abs().sum()).item()) if wanted.any() else {}),
        fresh=len(surprise),
        surprise=surprise.sum().item(),
        squares=surprise.square().sum().item(),
    )


def checksum(model: nn.Module, trained: bool) -> int:
    """A number that changes with any bit of a model's weights, and depends on neither threads nor devices. Includes
    weights that require a gradient if ``trained``."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums: List[int] = []
    for p in model.parameters():
        if trained or not p.requires_grad:
            bits = whole(p.detach()).contiguous().view(kinds[p.element_size()])
            sums.append(int(bits.sum(dtype=torch.int64)))
    return sum((2 * i + 1) * s for i, s in enumerate(sums)) % 2 ** 63
