"""
Compare configs: ``python -m ding_grpo.compare CONFIG ... --seeds 0,1,2`` runs several configs (paths or names of
shipped configs) on several seeds, and writes one table and one figure.
"""
import csv
import os
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import click
import numpy as np

from ding_common import ConfigError, ConfigFile, Rule, read_config_file, read_json_lines, require_dict
from ding_common.picture import finish, line_style, new_figure

DONE = 'result.pkl'  # DI-engine writes it last


class Run(NamedTuple):
    """One config with one seed."""
    name: str
    config: str
    mode: str
    seed: int
    folder: str
    stop_value: float

    @property
    def done(self) -> bool:
        return os.path.exists(os.path.join(self.folder, DONE))

    def evaluations(self) -> List[Dict[str, Any]]:
        return read_json_lines(os.path.join(self.folder, 'log', 'evaluator', 'evaluations.jsonl'))

    def solved(self) -> Optional[Dict[str, Any]]:
        """The first evaluation that reaches ``stop_value``, or None."""
        return next((e for e in self.evaluations() if e['eval_episode_return'] >= self.stop_value), None)


def plan(configs: Tuple[str, ...], seeds: List[int], out: str) -> List[Run]:
    """
    Overview:
        All runs, in the order in which they start.
    Arguments:
        - configs (:obj:`Tuple[str, ...]`): Config files. A config with keys of a replay buffer runs in mode ``serial``.
        - seeds (:obj:`List[int]`): Seeds of each config.
        - out (:obj:`str`): Folder of the comparison.
    Returns:
        - runs (:obj:`List[Run]`): One run per config and seed.
    Raises:
        - ConfigError: If two configs have the same name, or a config is invalid.
    """
    runs: List[Run] = []
    names: Dict[str, str] = {}
    for path in configs:
        main, _ = read_config_file(path)
        name = os.path.splitext(os.path.basename(path))[0].replace('_config', '')
        if name in names:
            raise ConfigError(f'{path}: has the name of {names[name]}, {name!r}; each config needs a different name.')
        names[name] = path
        other, stop_value = main.policy.get('other', {}), main.env.get('stop_value', float('inf'))
        require_dict(other, f'{path}: policy.other')
        if not Rule.number().or_inf().holds(stop_value):
            raise ConfigError(f'{path}: env.stop_value = {stop_value!r}: must be a number.')
        mode = 'serial' if other.get('replay_buffer') else 'serial_onpolicy'
        runs += [Run(name, path, mode, s, os.path.join(out, f'{name} seed {s}'), stop_value) for s in seeds]
    return sorted(runs, key=lambda r: seeds.index(r.seed))  # the first seed of all configs, then the second, ...


def start(run: Run, env_step: Optional[int], threads: int) -> subprocess.Popen:
    """Start a run in a new process, after deleting the files of an unfinished one."""
    shutil.rmtree(run.folder, ignore_errors=True)
    os.makedirs(os.path.dirname(run.folder) or '.', exist_ok=True)
    command = [
        sys.executable, '-m', 'ding_grpo', '-m', run.mode, '-c', run.config, '-s',
        str(run.seed), '--exp-name', run.folder
    ]
    if env_step is not None:
        command += ['--env-step', str(env_step)]
    env = dict(os.environ, OMP_NUM_THREADS=str(threads), GOMP_SPINCOUNT=os.environ.get('GOMP_SPINCOUNT', '1000'))
    with open(f'{run.folder}.txt', 'w') as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env)


def run_all(runs: List[Run], jobs: int, env_step: Optional[int], threads: int) -> List[Run]:
    """
    Overview:
        Execute all unfinished runs, ``jobs`` at a time.
    Returns:
        - failed (:obj:`List[Run]`): Runs that failed; their output is in ``FOLDER.txt``.
    """
    waiting = [r for r in runs if not r.done]
    if len(waiting) < len(runs):
        click.echo(f'{len(runs) - len(waiting)} of {len(runs)} runs are already done')
    running: List[Tuple[Run, subprocess.Popen, float]] = []
    failed: List[Run] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                run = waiting.pop(0)
                click.echo(f'started  {run.name} seed {run.seed}')
                running.append((run, start(run, env_step, threads), time.monotonic()))
            time.sleep(0.2)
            for entry in [e for e in running if e[1].poll() is not None]:
                running.remove(entry)
                run, process, since = entry
                bad = process.returncode != 0 or not run.done
                failed += [run] if bad else []
                last = run.evaluations()[-1:]
                text = f"return {last[0]['eval_episode_return']:.2f} after {last[0]['envstep']} steps" if last else ''
                what = 'FAILED  ' if bad else 'finished'
                click.echo(f'{what} {run.name} seed {run.seed}  {time.monotonic() - since:.0f} s  {text}')
    finally:
        for _, process, _ in running:
            process.terminate()
    return failed


def table(runs: List[Run]) -> List[Dict[str, Any]]:
    """
    Overview:
        One row per config: how many seeds reached the bar (``stop_value``); median, minimum and maximum of the steps
        and seconds to the bar; the same statistics of each seed's best return.
    """
    lines = []
    for name in dict.fromkeys(r.name for r in runs):
        of_name = [r for r in runs if r.name == name and r.evaluations()]
        solved = [s for s in (r.solved() for r in of_name) if s is not None]
        best = [max(e['eval_episode_return'] for e in r.evaluations()) for r in of_name]
        lines.append(
            {
                'algorithm': name,
                'bar': of_name[0].stop_value if of_name else '',
                'seeds': len(of_name),
                'solved': len(solved),
                'environment steps to the bar': _middle([s['envstep'] for s in solved], '.0f'),
                'seconds to the bar': _middle([s['seconds'] for s in solved], '.1f'),
                'best return': _middle(best, '.2f'),
            }
        )
    return lines


def _middle(values: List[float], form: str) -> str:
    if not values:
        return ''
    return f'{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})'


def write_table(lines: List[Dict[str, Any]], out: str, note: str) -> str:
    """Write the table as CSV and as Markdown, and return the Markdown text."""
    with open(os.path.join(out, 'comparison.csv'), 'w', newline='') as f:
        writer = csv.DictWriter(f, fieldnames=list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    rows = [list(lines[0]), ['---'] * len(lines[0]), *(line.values() for line in lines)]
    text = '\n'.join('| ' + ' | '.join(str(v) for v in row) + ' |' for row in rows)
    text = f'{text}\n\n{note}\n\n![curves](comparison.png)\n'
    with open(os.path.join(out, 'comparison.md'), 'w') as f:
        f.write(text)
    return text


def draw(runs: List[Run], path: str) -> None:
    """
    Overview:
        Plot median and interquartile range of the evaluated return across seeds, against environment steps and
        against seconds. A run that has ended keeps its last value.
    Arguments:
        - runs (:obj:`List[Run]`): Runs of any number of configs.
        - path (:obj:`str`): Path of the PNG file.
    """
    figure, panels = new_figure(2, width=11, height=4.4, sharey=True)
    names = list(dict.fromkeys(r.name for r in runs))
    for axes, key, label in zip(panels, ('envstep', 'seconds'), ('environment steps', 'seconds of training')):
        for number, name in enumerate(names):
            curves = [r.evaluations() for r in runs if r.name == name and r.evaluations()]
            if not curves:
                continue
            grid = np.linspace(0, max(c[-1][key] for c in curves), 200)
            values = np.stack([_on_grid(c, key, grid) for c in curves])  # (seeds, 200)
            low, middle, high = np.percentile(values, (25, 50, 75), axis=0)
            solved = sum(r.solved() is not None for r in runs if r.name == name)
            style = line_style(number)
            axes.plot(grid, middle, lw=1.5, label=f'{name} ({solved} of {len(curves)} seeds solved)', **style)
            axes.fill_between(grid, low, high, color=style['color'], alpha=0.2, lw=0)
        for bar in {r.stop_value for r in runs if np.isfinite(r.stop_value)}:
            axes.axhline(bar, color='grey', lw=0.8, ls='--')
        axes.set(xlabel=label)
    panels[0].set(ylabel='evaluated return')
    seeds = len({r.seed for r in runs})
    figure.suptitle(f'median and interquartile range of {seeds} seeds; dashed: the bar', fontsize='medium')
    finish(figure, path)


def _on_grid(evaluations: List[Dict[str, Any]], key: str, grid: np.ndarray) -> np.ndarray:
    """The last evaluation at or before each point."""
    at = np.array([e[key] for e in evaluations])
    index = np.clip(np.searchsorted(at, grid, side='right') - 1, 0, None)
    return np.array([e['eval_episode_return'] for e in evaluations])[index]


@click.command()
@click.argument('configs', nargs=-1, required=True, type=ConfigFile())
@click.option('--seeds', default='0,1,2,3,4', show_default=True, help='Comma-separated integers.')
@click.option('--jobs', default=1, show_default=True, type=click.IntRange(1), help='Number of parallel runs.')
@click.option('--env-step', default=None, type=click.IntRange(1), help='Maximum environment steps of each run.')
@click.option('--threads', default=1, show_default=True, type=click.IntRange(1), help='Threads per run.')
@click.option(
    '--out', default='runs/comparison', show_default=True, help='Output folder; finished runs in it are not repeated.'
)
def main(configs: Tuple[str, ...], seeds: str, jobs: int, env_step: Optional[int], threads: int, out: str) -> None:
    """Run several configs on several seeds, and write comparison.md, comparison.csv and comparison.png into --out."""
    try:
        numbers = [int(s) for s in seeds.split(',')]
    except ValueError as error:
        raise click.BadParameter(f'{seeds!r}: must be integers, comma-separated', param_hint='--seeds') from error
    if len(set(numbers)) < len(numbers):
        raise click.BadParameter(f'{seeds!r}: contains a seed twice', param_hint='--seeds')
    out = os.path.relpath(os.path.expanduser(out))  # DI-engine requires a relative path for a run's folder
    runs = plan(configs, numbers, out)
    try:
        os.makedirs(out, exist_ok=True)
    except OSError as error:
        raise click.BadParameter(f'{out!r}: {error.strerror}', param_hint='--out') from error
    failed = run_all(runs, jobs, env_step, threads)
    note = (
        f'Seeds {seeds}; {jobs} run(s) at a time with {threads} thread(s) each. Values are medians, with minimum and '
        'maximum in parentheses. On token environments a step is a token. Seconds are training time, without '
        'evaluations and imports.'
    )
    click.echo(write_table(table(runs), out, note))
    draw(runs, os.path.join(out, 'comparison.png'))
    if failed:
        names = ', '.join(f'{r.name} seed {r.seed} ({r.folder}.txt)' for r in failed)
        raise click.ClickException(f'{len(failed)} of {len(runs)} runs failed: {names}')


if __name__ == '__main__':
    main()
