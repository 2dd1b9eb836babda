"""The picture of a comparison."""
from typing import Any, Dict, List

import numpy as np
from matplotlib.axes import Axes

from ding_common.output.picture import finish, line_style, new_figure

from .runs import Run
from .statistics import interquartile_mean


def draw(runs: List[Run], path: str) -> None:
    """Plot the evaluated return of the finished runs of any number of configs. Two panels: median and interquartile
    range across seeds, against environment steps and against seconds; a run that has ended keeps its last value. Third
    panel: the final return of each seed, with the interquartile mean and its interval if there are at least 3 seeds."""
    figure, panels = new_figure(3, width=13, height=4.4, sharey=True, width_ratios=(3, 3, 1.4))
    for number, name in enumerate(dict.fromkeys(r.name for r in runs)):
        finished = [r for r in runs if r.name == name and r.done]
        if not finished:
            continue
        curves = [r.evaluations() for r in finished]
        solved = sum(r.outcome().solved for r in finished)
        label = f'{name} ({solved} of {len(curves)} seeds solved)'
        for axes, key in zip(panels, ('envstep', 'seconds')):
            _draw_curve(axes, curves, key, line_style(number), label)
        _draw_final(panels[2], number, [c[-1]['eval_episode_return'] for c in curves])
    for axes in panels:
        for bar in {r.bar for r in runs if np.isfinite(r.bar)}:
            axes.axhline(bar, color='grey', lw=0.8, ls='--')
    panels[0].set(xlabel='environment steps', ylabel='evaluated return')
    panels[1].set(xlabel='seconds of training')
    panels[2].set_title('final return', fontsize='medium')
    panels[2].set(xlim=(-0.7, len({r.name for r in runs}) - 0.3))
    panels[2].xaxis.set_visible(False)
    seeds = len({r.seed for r in runs})
    figure.suptitle(
        f'{seeds} seeds. Curves: median and interquartile range; right: each seed, interquartile mean with 95 % '
        'interval; dashed: the bar',
        fontsize='medium'
    )
    finish(figure, path)


def _draw_curve(axes: Axes, curves: List[List[Dict[str, Any]]], key: str, style: dict, label: str) -> None:
    grid = np.linspace(0, max(c[-1][key] for c in curves), 200)
    values = np.stack([_on_grid(c, key, grid) for c in curves])  # (seeds, 200)
    low, middle, high = np.percentile(values, (25, 50, 75), axis=0)
    axes.plot(grid, middle, lw=1.5, label=label, **style)
    axes.fill_between(grid, low, high, color=style['color'], alpha=0.2, lw=0)


def _draw_final(axes: Axes, number: int, returns: List[float]) -> None:
    colour, mean = line_style(number)['color'], interquartile_mean(returns)
    axes.plot([number] * len(returns), returns, '.', color=colour, alpha=0.5)
    if mean is not None:
        axes.plot([number + 0.2] * 2, [mean.low, mean.high], color=colour, lw=1.5)
        axes.plot([number + 0.2], [mean.value], 'D', color=colour)


def _on_grid(evaluations: List[Dict[str, Any]], key: str, grid: np.ndarray) -> np.ndarray:
    """The last evaluation at or before each point."""
    at = np.array([e[key] for e in evaluations])
    index = np.clip(np.searchsorted(at, grid, side='right') - 1, 0, None)
    return np.array([e['eval_episode_return'] for e in evaluations])[index]
