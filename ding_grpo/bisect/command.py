"""The command line of a bisect."""
from typing import Iterator

import click

from ding_common import counted, echo
from ding_common.errors import errors_exit_with
from ding_grpo.report.command import check_folder

from .causes import causes
from .chain import Chain, other_machine, other_settings, read_chain
from .find import Parting, parting
from .stages import EXACT

ROUNDING = 1e-4  # relative; a first difference below is as small as rounding makes it in one update


@click.command()
@click.argument('run_a', type=click.Path())
@click.argument('run_b', type=click.Path())
@click.option(
    '--tolerance', default=0., show_default=True, type=click.FloatRange(0), help='Relative difference that passes.'
)
@click.option('--again/--no-again', default=True, help='Whether to make the update again where the runs part.')
@click.option('--trust', is_flag=True, help='Import and run what the configs name, to make the update again.')
@errors_exit_with(2)
def main(run_a: str, run_b: str, tolerance: float, again: bool, trust: bool) -> None:
    """Find the first update, stage, group, row, step or tensor in which two runs differ. The exit status is 1 if they
    differ beyond the tolerance, and 2 after an error."""
    for folder in (run_a, run_b):
        check_folder(folder)
    a, b = read_chain(run_a), read_chain(run_b)
    found = parting(a, b, tolerance)
    for line in [*settings_text(a, b), *parting_text(found, tolerance)]:
        echo(line)
    if found.difference is not None and found.difference.stage not in ('checkpoint', 'start') and again:
        for line in causes(a, b, found.update, found.difference.stage, trust):
            echo(line)
    raise SystemExit(int(found.difference is not None))


def settings_text(a: Chain, b: Chain) -> Iterator[str]:
    """What differs between the last starts of both runs."""
    one, two = (chain.begun(max(chain.updates)) for chain in (a, b))
    for what, found in (('machine', other_machine(one, two)), ('setting', other_settings(one, two))):
        for key, (x, y) in found.items():
            yield f'{what} {key}: {x} / {y}'


def parting_text(found: Parting, tolerance: float) -> Iterator[str]:
    if found.within:
        sizes = ', '.join(f'{stage} {size:.1e}' for stage, size in found.within.items())
        yield f'rounding within the tolerance of {tolerance:g}, from update {found.since} on; largest by stage: {sizes}'
    difference, are = found.difference, 'is' if found.same == 1 else 'are'
    number, rounding = counted(found.same, 'update'), ', but for rounding' if found.within else ''
    if difference is None:
        yield f'{number} of both runs {are} equal{rounding}'
        return
    yield f'{number} {are} equal{rounding}. First difference:'
    yield f'  update {found.update}, {difference.stage}: {difference.place}: {difference.values}'
    if difference.size < EXACT:
        yield f'  relative difference {difference.size:.1e}' + (
            f', as small as rounding: --tolerance {ROUNDING:g} goes on' if difference.size < ROUNDING else ''
        )
    if found.stages:
        numbers = ', '.join(f'{stage} {number}' for stage, number in found.stages.items())
        yield f'  differences in this update by stage: {numbers}'
