"""Branches group by group: a group of a branch and the group of the same number in the first branch are a pair."""
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from ding_common import counted
from ding_grpo.compare.statistics import Estimate, mean, times_fewer

from .group_record import Group, Groups

Pair = Tuple[Group, Group]


class Difference(NamedTuple):
    """The rewards of a branch minus those of the first one. Lists have one entry for each update."""
    pairs: int  # that count
    unpaired: int  # groups that one of the two has not, or with another problem, or without a reward
    mean: Optional[Estimate]  # over all pairs
    of_update: List[Optional[Estimate]]
    equal_rows: List[float]  # share of rows with the same actions, NaN without pairs
    fewer: Optional[float]  # see ``times_fewer``, within updates

    @property
    def parted(self) -> Optional[int]:
        """Number of updates after which fewer than half of the rows are the same; None if that never happens."""
        return next((number for number, share in enumerate(self.equal_rows) if share < 0.5), None)


def difference(first: Groups, other: Groups, begin: int, end: int) -> Difference:
    """Compare two branches in the updates from ``begin`` to before ``end``. The checkpoint samples the groups of
    ``begin``, which count only if they differ."""
    by_update: Dict[int, List[Pair]] = {update: [] for update in range(begin, end)}
    for key in sorted(set(first) & set(other)):
        a, b = first[key], other[key]
        if a.problem == b.problem and a.reward is not None and b.reward is not None:
            by_update[key[0]].append((a, b))
    unpaired = len(set(first) | set(other)) - sum(map(len, by_update.values()))
    counting = begin + all(a == b for a, b in by_update[begin])
    rewards = [[(a.reward, b.reward) for a, b in by_update[update]] for update in range(counting, end)]
    return Difference(
        sum(map(len, rewards)),
        unpaired,
        mean([b - a for of_update in rewards for a, b in of_update]),
        [mean([b.reward - a.reward for a, b in of_update]) for of_update in by_update.values()],
        [_equal(of_update) for of_update in by_update.values()],
        times_fewer(rewards),
    )


def _equal(pairs: List[Pair]) -> float:
    same = [x == y for a, b in pairs for x, y in zip(a.rows, b.rows)]
    return float(np.mean(same)) if same else float('nan')


def line(name: str, groups: Groups, last: Optional[float], found: Optional[Difference]) -> Dict[str, Any]:
    """A line of the table; ``last`` is the return of the evaluation at the end, ``found`` is None for the first."""
    rewards = [group.reward for group in groups.values() if group.reward is not None]
    row = {'setting': name, 'mean reward': f'{np.mean(rewards):.4g}' if rewards else '', 'difference': ''}
    row.update({'95 % interval': '', 'pairs': '', 'half of the rows differ after': '', 'pairing saves': ''})
    if found is not None:
        if found.mean is not None:
            value, low, high = map(_signed, found.mean)
            row.update({'difference': value, '95 % interval': f'{low} to {high}'})
        parted = found.parted
        row['half of the rows differ after'] = 'never' if parted is None else counted(parted, 'update')
        row['pairs'] = str(found.pairs)
        row['pairing saves'] = saved(found.fewer)
    row['evaluation at the end'] = '' if last is None else f'{last:.4g}'
    return row


def _signed(value: float) -> str:
    return f'{value:+.4g}' if value else '0'


def saved(fewer: Optional[float]) -> str:
    """How many times fewer pairs than separate groups or seeds are needed."""
    return '' if fewer is None else 'all' if fewer == float('inf') else f'{fewer:.1f} times'
