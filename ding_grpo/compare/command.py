"""The command line of a comparison."""
import math
import os
from typing import Optional, Tuple

import click

from ding_common import ConfigFile

from .picture import draw
from .runs import bar_warning, plan, run_all
from .table import table, write_table


@click.command()
@click.argument('configs', nargs=-1, required=True, metavar='CONFIG... [KEY=VALUE,VALUE]...')
@click.option('--seeds', default='0,1,2,3,4', show_default=True, help='Comma-separated integers.')
@click.option('--jobs', default=1, show_default=True, type=click.IntRange(1), help='Number of parallel runs.')
@click.option('--env-step', default=None, type=click.IntRange(1), help='Maximum environment steps of each run.')
@click.option(
    '--bar',
    default=None,
    type=float,
    help="Return at which every run ends and counts as solved, instead of each config's env.stop_value."
)
@click.option('--threads', default=1, show_default=True, type=click.IntRange(1), help='Threads per run.')
@click.option(
    '--out', default='runs/comparison', show_default=True, help='Output folder; finished runs in it are not repeated.'
)
def main(
        configs: Tuple[str, ...], seeds: str, jobs: int, env_step: Optional[int], bar: Optional[float], threads: int,
        out: str
) -> None:
    """Run several configs, or one with several values of its keys, on several seeds, and write comparison.md,
    comparison.csv and comparison.png into --out."""
    settings = [word for word in configs if '=' in word]
    files = [ConfigFile().convert(word, None, None) for word in configs if word not in settings]
    if not files:
        raise click.UsageError('name a config before its keys')
    try:
        numbers = [int(s) for s in seeds.split(',')]
    except ValueError as error:
        raise click.BadParameter(f'{seeds!r}: must be integers, comma-separated', param_hint='--seeds') from error
    if len(set(numbers)) < len(numbers):
        raise click.BadParameter(f'{seeds!r}: contains a seed twice', param_hint='--seeds')
    if bar is not None and not math.isfinite(bar):
        raise click.BadParameter(f'{bar}: must be finite', param_hint='--bar')
    out = os.path.relpath(os.path.expanduser(out))  # DI-engine requires a relative path for a run's folder
    runs = plan(files, numbers, out, bar, settings)
    try:
        os.makedirs(out, exist_ok=True)
    except OSError as error:
        raise click.BadParameter(f'{out!r}: {error.strerror}', param_hint='--out') from error
    warning = bar_warning(runs)
    if warning:
        click.echo(warning)
    failed = run_all(runs, jobs, env_step, threads)
    limit = 'no limit of steps' if env_step is None else f'at most {env_step} steps each'
    notes = [f'Seeds {seeds}; {jobs} run(s) at a time with {threads} thread(s) each; {limit}.']
    if settings:
        notes.append(f"Changed keys: {', '.join(f'`{setting}`' for setting in settings)}.")
    if failed:
        notes.append(f"Failed and not in the table: {', '.join(f'{r.name} seed {r.seed}' for r in failed)}.")
    click.echo(write_table(table(runs), out, notes + [warning] * bool(warning)))
    draw(runs, os.path.join(out, 'comparison.png'))
    click.echo(f"table: {os.path.join(out, 'comparison.md')}, also as comparison.csv; picture: comparison.png")
    if failed:
        names = ', '.join(f'{r.name} seed {r.seed} ({r.folder}.txt)' for r in failed)
        raise click.ClickException(f'{len(failed)} of {len(runs)} runs failed: {names}')
