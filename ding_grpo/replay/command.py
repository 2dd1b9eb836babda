"""The command line of a replay."""
import os
from typing import Optional, Tuple

import click

from ding_common import ConfigError, echo
from ding_grpo.engine.recorded import from_record
from ding_grpo.run.checkpoint import read_checkpoint
from ding_grpo.sharing.portable import open_run

from .changes import Changes, Fork
from .feeding import recorded
from .fork import forked
from .session import replay
from .show import differing_text, fork_text, group_text, row_text


@click.command()
@click.argument('checkpoint', type=click.Path())
@click.option('--group', default=0, show_default=True, type=click.IntRange(0), help='Number of the group.')
@click.option('--row', 'rows', multiple=True, type=click.IntRange(0), help='Row whose steps are shown; repeatable.')
@click.option(
    '--set', 'settings', multiple=True, metavar='KEY=VALUE', help='Another value of a config key; repeatable.'
)
@click.option(
    '--force', 'forces', multiple=True, metavar='ROW:STEP=ACTION', help='Action (token id) of a step; repeatable.'
)
@click.option('--reward', 'rewards', multiple=True, metavar='ROW=REWARD', help='Total reward of a row; repeatable.')
@click.option(
    '--fork', metavar='ROW:TOKEN', help='Continue a row from a token on in as many ways as the group has rows.'
)
@click.option('--alone', is_flag=True, help='Update with this group only, not with all groups of its collect.')
@click.option('--trust', is_flag=True, help="Import and run what the run's config names: docs/guides/instruments.md")
@click.option('--run', default=None, help="The run's folder; by default the one that contains the checkpoint's folder.")
def main(
        checkpoint: str, group: int, rows: Tuple[int, ...], settings: Tuple[str, ...], forces: Tuple[str, ...],
        rewards: Tuple[str, ...], fork: Optional[str], alone: bool, trust: bool, run: Optional[str]
) -> None:
    """Sample a group again, exactly as the run does after CHECKPOINT, and show what the update does to each token."""
    changes, place = Changes.parse(settings, forces, rewards), None if fork is None else Fork.parse(fork)
    if fork is not None and (any(changes) or rows or alone):
        raise ConfigError(
            f'--fork {fork}: not available with --set, --force, --reward, --row and --alone, because it does no update.'
        )
    checkpoint = os.path.expanduser(checkpoint)
    run = run or os.path.dirname(os.path.dirname(os.path.abspath(checkpoint)))
    cfg = open_run(run, trust)
    from_record(cfg['policy'], run)
    state = read_checkpoint(checkpoint)
    records = recorded(run, state.get('last_iter'))
    if records:
        click.echo(
            f'Requests of {len(records)} rows are those that the run recorded. Agents run only where a change may lead '
            'to other requests.'
        )
    if place is not None:
        divided = forked(cfg, state, group, place, records)
        if 'buffer' not in state['run'] and (differs := differing_text(run, divided.recorded)):
            echo(differs)
        echo(fork_text(divided))
        return
    found = replay(cfg, state, group, Changes(), alone, records)
    changed = replay(cfg, state, group, changes, alone, records) if any(changes) else None
    if 'buffer' in state['run']:
        click.echo(
            'The run has a replay buffer: the group is the one that it sampled, but its update learned from groups of '
            'other collects too. This one learns from the groups of one collect.'
        )
    elif not alone and (differs := differing_text(run, found)):
        echo(differs)
    echo(group_text(found, changed))
    for row in rows:
        if row >= len(found.record['rows']):
            raise ConfigError(f"--row = {row}: the group has the rows 0 to {len(found.record['rows']) - 1}.")
        echo(f'\n{row_text(found, row, changed)}')
