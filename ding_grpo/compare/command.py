"""The command line of a comparison."""
import math
import os
from typing import Any, Callable, List, Optional, Sequence, Tuple

import click

from ding_common import ConfigFile

from .paired import paired as paired_table
from .picture import draw
from .runs import bar_warning, plan, run_all
from .table import table, write_table


class Values(click.ParamType):
    """Comma-separated values of the type ``kind``, without repetition, for an option of a command: among ``allowed``,
    all of which the word ``all`` stands for, or numbers of at least ``low``."""
    name = 'values'

    def __init__(self, kind: Callable, allowed: Sequence[str] = (), low: Optional[float] = None) -> None:
        self._kind, self._allowed, self._low = kind, allowed, low

    def convert(self, value: Any, param: click.Parameter, ctx: click.Context) -> List[Any]:
        if not isinstance(value, str):
            return value
        if value == 'all' and self._allowed:
            return list(self._allowed)
        try:
            values = [self._kind(part.strip()) for part in value.split(',')]
        except ValueError:
            kind = 'integers' if self._kind is int else 'numbers'
            self.fail(f'{value!r}: must be {kind}, comma-separated', param, ctx)
        wrong = [v for v in values if self._allowed and v not in self._allowed]
        if wrong:
            self.fail(f'{wrong[0]!r}: must be among {", ".join(self._allowed)}', param, ctx)
        if self._low is not None and not all(self._low <= v < math.inf for v in values):
            self.fail(f'{value!r}: must be finite numbers of at least {self._low}', param, ctx)
        if len(set(values)) < len(values):
            self.fail(f'{value!r}: contains a value twice', param, ctx)
        return values


def make_folder(out: str) -> None:
    """Create the folder that the option --out names."""
    try:
        os.makedirs(out, exist_ok=True)
    except OSError as error:
        raise click.BadParameter(f'{out!r}: {error.strerror}', param_hint='--out') from error


@click.command()
@click.argument('configs', nargs=-1, required=True, metavar='CONFIG... [KEY=VALUE,VALUE]...')
@click.option('--seeds', default='0,1,2,3,4', show_default=True, type=Values(int), help='Comma-separated integers.')
@click.option('--jobs', default=1, show_default=True, type=click.IntRange(1), help='Number of parallel runs.')
@click.option('--env-step', default=None, type=click.IntRange(1), help='Maximum environment steps of each run.')
@click.option(
    '--bar',
    default=None,
    type=float,
    help="Return at which every run ends and counts as solved, instead of each config's env.stop_value."
)
@click.option('--threads', default=1, show_default=True, type=click.IntRange(1), help='Threads per run.')
@click.option('--paired', is_flag=True, help='Also differences to the first config, seed by seed.')
@click.option(
    '--out', default='runs/comparison', show_default=True, help='Output folder; finished runs in it are not repeated.'
)
def main(
        configs: Tuple[str, ...], seeds: List[int], jobs: int, env_step: Optional[int], bar: Optional[float],
        threads: int, paired: bool, out: str
) -> None:
    """Run several configs, or one with several values of its keys, on several seeds, and write comparison.md,
    comparison.csv and comparison.png into --out."""
    settings = [word for word in configs if '=' in word]
    files = [ConfigFile().convert(word, None, None) for word in configs if word not in settings]
    if not files:
        raise click.UsageError('name a config before its keys')
    if bar is not None and not math.isfinite(bar):
        raise click.BadParameter(f'{bar}: must be finite', param_hint='--bar')
    out = os.path.relpath(os.path.expanduser(out))  # DI-engine requires a relative path for a run's folder
    runs = plan(files, seeds, out, bar, settings)
    make_folder(out)
    warning = bar_warning(runs)
    if warning:
        click.echo(warning)
    failed = run_all(runs, jobs, env_step, threads)
    limit = 'no limit of steps' if env_step is None else f'at most {env_step} steps each'
    notes = [f'Seeds {",".join(map(str, seeds))}; {jobs} run(s) at a time with {threads} thread(s) each; {limit}.']
    if settings:
        notes.append(f"Changed keys: {', '.join(f'`{setting}`' for setting in settings)}.")
    if failed:
        notes.append(f"Failed and not in the table: {', '.join(f'{r.name} seed {r.seed}' for r in failed)}.")
    if paired:
        notes.insert(0, paired_table(runs))
    click.echo(write_table(table(runs), out, [*filter(None, notes), *[warning] * bool(warning)]))
    draw(runs, os.path.join(out, 'comparison.png'))
    click.echo(f"table: {os.path.join(out, 'comparison.md')}, also as comparison.csv; picture: comparison.png")
    if failed:
        names = ', '.join(f'{r.name} seed {r.seed} ({r.folder}.txt)' for r in failed)
        raise click.ClickException(f'{len(failed)} of {len(runs)} runs failed: {names}')
