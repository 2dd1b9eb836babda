"""The picture of the gradient bench."""
from statistics import median
from typing import Any, Dict, List

from ding_common.output.picture import finish, line_style, new_figure

from .table import distinct, fixed, select


def draw(lines: List[Dict[str, Any]], path: str, key: str = 'loss') -> None:
    """Plot the bias of each loss, or of what else the key names, with one advantage, and of each advantage with one
    loss, at the largest group size: a point for each staleness, and a line from the smallest to the largest of all
    worlds. Writes a PNG."""
    one, advantage, size = fixed(lines, key), fixed(lines, 'advantage'), distinct(lines, 'group_size')[-1]
    figure, panels = new_figure(2, width=12, height=6, sharex=True)
    for axes, varied, where in ((panels[0], key, dict(advantage=advantage)), (panels[1], 'advantage', {key: one})):
        shown = select(lines, group_size=size, **where)
        names = distinct(shown, varied)
        levels = distinct(shown, 'staleness')
        for number, staleness in enumerate(levels):
            colour, offset = line_style(number)['color'], (number - (len(levels) - 1) / 2) * 0.25
            for place, name in enumerate(names):
                values = [line['bias'] for line in select(shown, staleness=staleness, **{varied: name})]
                label = f'staleness {staleness:g}' if place == 0 else None
                axes.plot([min(values), max(values)], [place + offset] * 2, color=colour, lw=1.5, alpha=0.5)
                axes.plot(median(values), place + offset, 'o', color=colour, ms=5, label=label)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        other, = where.items()
        axes.set(xlabel='bias: share of the mean step off the true gradient')
        axes.set_title(f'{varied}, with the {other[0]} {other[1]}', fontsize='medium')
    worlds = len(distinct(lines, 'seed'))
    figure.suptitle(
        f'Group size {size}. Points: median of {worlds} worlds; lines: from smallest to largest', size='medium'
    )
    finish(figure, path)
