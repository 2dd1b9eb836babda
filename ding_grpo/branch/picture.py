"""The picture of branches."""
from typing import Dict, List

import numpy as np

from ding_common.output.picture import finish, line_style, new_figure

from .group_record import Groups
from .paired import Difference


def draw(groups: Dict[str, Groups], found: Dict[str, Difference], begin: int, end: int, path: str) -> None:
    """Left: the mean reward of the groups of each update. Right: the differences to the first branch, with 95 %
    intervals over the groups of the update."""
    figure, (left, right) = new_figure(2, width=11)
    updates = np.arange(begin, end)
    for number, (name, of_branch) in enumerate(groups.items()):
        style = line_style(number)
        left.plot(updates, _means(of_branch, begin, end), label=name, lw=1.5, **style)
        known = [(u, e) for u, e in zip(updates, found[name].of_update) if e is not None] if name in found else []
        if known:
            right.plot([u for u, _ in known], [e.value for _, e in known], lw=1.2, **style)
            low, high = [e.low for _, e in known], [e.high for _, e in known]
            right.fill_between([u for u, _ in known], low, high, color=style['color'], alpha=0.2, lw=0)
    right.axhline(0, color='grey', lw=0.8, ls='--')
    left.set(xlabel='update', ylabel='mean reward')
    right.set(xlabel='update', ylabel=f'difference to {next(iter(groups))}')
    finish(figure, path)


def _means(groups: Groups, begin: int, end: int) -> List[float]:
    of_update: Dict[int, List[float]] = {update: [] for update in range(begin, end)}
    for (update, _), group in groups.items():
        if group.reward is not None:
            of_update[update].append(group.reward)
    return [float(np.mean(rewards)) if rewards else float('nan') for rewards in of_update.values()]
