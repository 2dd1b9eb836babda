"""The picture of shadow losses and of the noise scale."""
import os
from typing import Any, Dict, List, Optional, Tuple

from ding_common import read_json_lines
from ding_grpo.logs.screen import run_folder, show

Records = List[Dict[str, Any]]
SHARES = ('positive', 'negative', 'first', 'middle', 'last', 'long')
MEAN = 10  # updates


def show_shadow(engine: 'BaseLearner') -> None:  # noqa
    """Draw shadow losses and noise scales at the end of a run, if there are any."""
    run = run_folder(engine.exp_name)
    path = os.path.join(run, 'shadow.png')
    if engine.rank == 0 and draw_shadow(run, path):
        show(f'shadow losses: {os.path.normpath(path)}')


def draw_shadow(folder: str, path: str) -> bool:
    """Draw what a run measured of shadow losses: cosine with the loss in use and relative norm of each update, and the
    mean shares of the run; and the noise scale. Returns whether there was anything to draw."""
    records = read_json_lines(os.path.join(folder, 'log', 'learner', 'metrics.jsonl'))
    losses = list(dict.fromkeys(key.split('/')[1] for record in records for key in record if key.startswith('shadow/')))
    if not losses:
        return False
    from ding_common.output.picture import finish, line_style, new_figure
    presets = [name for name in losses if name not in ('in_use', 'tokens')]
    figure, panels = new_figure(4, width=17, height=5.5)
    for number, name in enumerate(presets):
        style = dict(line_style(number), lw=1.2, label=name)
        panels[0].plot(*_series(records, f'shadow/{name}/cosine'), **style)
        panels[1].plot(*_series(records, f'shadow/{name}/norm', 'shadow/in_use/norm'), **style)
    panels[0].set(title='cosine with the loss in use', xlabel='update')
    panels[1].set(title='norm / norm of the loss in use', xlabel='update', yscale='log')
    rows = [name for name in ('tokens', 'in_use', *presets) if name in losses]
    for number, share in enumerate(SHARES):
        found = [(_mean(records, f'shadow/{name}/{share}'), row) for row, name in enumerate(rows)]
        shown = [(value, row) for value, row in found if value is not None]
        panels[2].plot(
            *zip(*shown), 'os^v<>D'[number], color=line_style(number)['color'], ms=5, label=f'share: {share}'
        )
    panels[2].set_yticks(range(len(rows)), rows)
    panels[2].set_ylim(len(rows) - 0.5, -0.5)
    panels[2].set(title='shares of the squared norm', xlim=(-0.02, 1.02))
    for number, kind in enumerate(('table', 'weights')):
        panels[3].plot(
            *noise_scales(records, kind), color=line_style(number)['color'], marker='.', label=f'noise: {kind}'
        )
    panels[3].set(title=f'noise scale in groups, mean of {MEAN} updates', xlabel='update', yscale='log')
    for axis in (panels[1].yaxis, panels[3].yaxis):
        axis.set_major_formatter('{x:g}')
        axis.set_minor_formatter('{x:g}' if axis is panels[3].yaxis else '')
    finish(figure, path)
    return True


def noise_scales(records: Records, kind: str) -> Tuple[List[int], List[float]]:
    """The noise scale in groups over a run, 'table' or 'weights', with the last update of each value: mean variance /
    mean signal of the last ten measurements. The mean of their quotients would depend on the smallest signal alone.
    Where the mean signal is not positive there is no value."""
    measured = [r for r in records if f'noise/{kind}/signal' in r]
    updates, scales = [], []
    for end in range(MEAN, len(measured) + 1):
        chosen = measured[end - MEAN:end]
        variance, signal = (_mean(chosen, f'noise/{kind}/{name}') for name in ('variance', 'signal'))
        if signal > 0:
            updates.append(chosen[-1]['train_iter'])
            scales.append(variance / signal)
    return updates, scales


def _series(records: Records, key: str, divisor: Optional[str] = None) -> Tuple[List[int], List[float]]:
    found = [r for r in records if key in r and (divisor is None or r.get(divisor))]
    return [r['train_iter'] for r in found], [r[key] / (1 if divisor is None else r[divisor]) for r in found]


def _mean(records: Records, key: str) -> Optional[float]:
    values = [r[key] for r in records if key in r]
    return sum(values) / len(values) if values else None
