"""``python -m ding_grpo.verify`` makes updates of a run again, and compares them with what the run says they were."""
import os
from itertools import groupby
from typing import Iterator, List, Optional

import click

from ding_common import echo
from ding_common.errors import errors_exit_with
from ding_grpo.compare.command import Values

from .bisect.again import again, start_of
from .bisect.chain import Chain, other_machine, pairs, read_chain
from .bisect.find import altered
from .bisect.stages import EXACT, differences, first
from .report.command import check_folder
from .run.checkpoint import number_of, numbered
from .sharing.portable import open_run


@click.command()
@click.argument('run', type=click.Path())
@click.option(
    '--updates',
    default=None,
    type=Values(int, low=0),
    help='Numbers of updates, comma-separated. Default: the first one, and those after each checkpoint.'
)
@click.option(
    '--tolerance', default=0., show_default=True, type=click.FloatRange(0), help='Relative difference that passes.'
)
@click.option('--trust', is_flag=True, help="Import and run what the run's config names.")
@errors_exit_with(2)
def main(run: str, updates: Optional[List[int]], tolerance: float, trust: bool) -> None:
    """Make updates of RUN again, from its checkpoints, and compare them with its digests. The exit status is 0 if they
    are what the run says, 1 if not, 2 after an error."""
    check_folder(run)
    chain = read_chain(run)
    open_run(run, trust)
    asked = _default(chain) if updates is None else updates
    missing = [update for update in asked if update not in chain.updates]
    if missing:
        raise click.BadParameter(
            f'{missing[0]}: the run has the updates 0 to {max(chain.updates)}', param_hint='--updates'
        )
    by_start = groupby(sorted(set(asked)), key=lambda update: start_of(run, update))
    results = [right for start, updates in by_start for right in _verified(chain, start, [*updates], tolerance)]
    echo(f'{sum(results)} of {len(results)} updates are what the run says they were')
    raise SystemExit(int(not all(results)))


def _default(chain: Chain) -> List[int]:
    saved = [number_of(path) for path in numbered(os.path.join(chain.run, 'ckpt'))]
    return [update for update in (min(chain.updates), *saved) if update in chain.updates]


def _verified(chain: Chain, start: Optional[str], updates: List[int], tolerance: float) -> Iterator[bool]:
    """Whether each of some updates, which are made again from one checkpoint, is what the run says."""
    made = again(chain.run, start, updates[-1], chain.threads(updates[0]))
    place = 'the start' if start is None else os.path.basename(start)
    machine = other_machine(chain.begun(updates[0]), made.begins[-1])
    if machine:
        echo(f'from {place}: this process has {pairs(machine)} in the run')
    changed = next(altered(chain.run, made.begins), None)
    if changed is not None:
        echo(f'from {place}: {changed.place} is not as the run has saved it')
    for update in updates:
        found, within = first(differences(chain.updates[update], made.updates[update], made.name), tolerance)
        right = found is None and changed is None
        if found is not None:
            size = '' if found.size == EXACT else f', relative difference {found.size:.1e}'
            told = f'differs from the run (run / again), first in {found.stage}: {found.place}: {found.values}{size}'
        else:
            told = 'as the run says' + (
                f', but for rounding ({max(within.values()):.1e})' if within else ', bit for bit'
            )
        echo(f'update {update}, from {place}: {told}')
        yield right


if __name__ == '__main__':
    main()
