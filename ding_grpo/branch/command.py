"""The command line of branches."""
import gc
import os
from typing import Any, Dict, List, Optional, Tuple

import click

from ding_common import CheckpointError, ConfigError, echo, read_json_lines
from ding_common.content import check_content, taking
from ding_grpo.check import built
from ding_grpo.compare.table import markdown, write_csv
from ding_grpo.entry.pipeline import checked, running
from ding_grpo.loop import run as run_loop
from ding_grpo.report.command import check_folder
from ding_grpo.run.checkpoint import number_of, numbered, read_checkpoint
from ding_grpo.run.parts import Limits
from ding_grpo.sharing.config_file import Saved
from ding_grpo.sharing.portable import config_of, open_run, replays

from .group_record import RecordingParts, read_groups
from .paired import Difference, difference, line
from .picture import draw
from .plan import Branch, Start, branches_of, listed, start_of

NOTE = '''\
- Rewards are means over the groups of updates {begin} to {last}, all sampled after the checkpoint of {begin} updates.
- A difference is the mean over pairs: a group, and the group of {first} with the same problem and the same random
  numbers. The interval is a 95 % bootstrap interval over these pairs (percentiles of 9,999 resamples). It tells how
  well these groups measure the two branches, and not what another seed would do.
- "Pairing saves": how many times more groups with other problems and random numbers would give this interval.
- The first update's groups are sampled by the weights of the checkpoint. They count only if sampling differs.'''


@click.command()
@click.argument('run', type=click.Path())
@click.argument('settings', nargs=-1, required=True, metavar='KEY=VALUE[,VALUE]...')
@click.option(
    '--at', default=None, type=click.IntRange(0), help='Update of the checkpoint, or of the newest before it.'
)
@click.option('--updates', default=20, show_default=True, type=click.IntRange(1), help='Updates of each branch.')
@click.option('--own', is_flag=True, help="Also a branch with the run's own setting, to which the others are compared.")
@click.option('--out', default=None, help='Folder of the branches; by default RUN/branches/UPDATE.')
@click.option('--trust', is_flag=True, help="Import and run what the run's config names: docs/guides/instruments.md")
def main(
        run: str, settings: Tuple[str, ...], at: Optional[int], updates: int, own: bool, out: Optional[str], trust: bool
) -> None:
    """Go on from a checkpoint of RUN with each combination of values, with the same problems and random numbers, and
    compare the rewards. Finished branches are not run again."""
    run = os.path.expanduser(run)
    check_folder(run)
    start, total = start_of(run, at, updates), open_run(run, trust)
    out = os.path.expanduser(out) if out else os.path.join(run, 'branches', str(start.update))
    out = os.path.relpath(out)  # DI-engine requires a relative path for a run's folder
    branches = branches_of(settings, out, own)
    if at not in (None, start.update):
        numbers = sorted(number_of(path) for path in numbered(os.path.join(run, 'ckpt')))
        echo(f'--at {at}: the branches begin at update {start.update}; the run has checkpoints of {listed(numbers)}')
    failed = run_all(run, branches, start, replays(total))
    finished = [branch for branch in branches if branch.name not in failed]
    echo(write(finished, start, out))
    if failed:
        told = '; '.join(f'{name}: {message}' for name, message in failed.items())
        raise click.ClickException(f'{len(failed)} of {len(branches)} branches failed: {told}')


def run_all(run: str, branches: List[Branch], start: Start, buffered: bool) -> Dict[str, str]:
    """Run all unfinished branches one after the other. Returns the messages of those that failed, by name."""
    saved, failed = config_of(run), {}
    waiting = [branch for branch in branches if not branch.done(start)]
    if len(waiting) < len(branches):
        echo(f'{len(branches) - len(waiting)} of {len(branches)} branches are already done')
    if waiting:
        state = read_checkpoint(start.checkpoint)
        if 'collector' not in state.get('run', {}):
            raise ConfigError(
                f'{start.checkpoint}: contains weights alone, and not the whole state of its run; a branch needs both.'
            )
        for branch in waiting:
            try_out(branch, saved, start, state)
            gc.collect()  # its model, before the next one is made
        del state
    for branch in branches:
        branch.begin(saved, start)
    for branch in waiting:
        echo(f'branch {branches.index(branch) + 1} of {len(branches)}: {branch.name}')
        try:
            go_on(branch, saved, start, buffered)
        except SystemExit:
            echo(f'stopped; the same command goes on with {branch.name}')
            raise
        except click.ClickException as error:
            if branch is branches[0]:
                raise
            failed[branch.name] = error.message
        gc.collect()
    return failed


def try_out(branch: Branch, saved: Saved, start: Start, state: Dict[str, Any]) -> None:
    """Build the parts of a branch and load the checkpoint, so that a wrong setting ends the command before the first
    branch begins. Raises ``ConfigError``."""
    with built(*checked(branch.configs(saved, start)), saved.seed) as (policy, collector):
        try:
            with taking('the checkpoint'):
                policy.learn_mode.load_state_dict(state)
                check_content(state['run'], dict(collector=collector.state_dict(waits=False)), 'the checkpoint')
        except (CheckpointError, ConfigError) as error:
            raise ConfigError(
                f"{' '.join(branch.settings)}: cannot be changed in a branch, which goes on with weights, optimizer "
                f'and counters of its checkpoint: {error.message}'
            ) from error


def go_on(branch: Branch, saved: Saved, start: Start, buffered: bool) -> None:
    """Run a branch until the end, from its own newest checkpoint if it has one."""
    configs, end = branch.configs(saved, start), Limits(updates=start.end)
    with running(configs, saved.seed, None, None, end, replays=buffered) as parts:
        run_loop(RecordingParts(**vars(parts)))


def write(branches: List[Branch], start: Start, out: str) -> str:
    """Write branches.md, branches.csv and branches.png. Returns the text."""
    groups = {branch.name: read_groups(branch.folder, start.update, start.end) for branch in branches}
    first, *others = groups
    found: Dict[str, Difference] = {
        name: difference(groups[first], groups[name], start.update, start.end)
        for name in others
    }
    lines = [line(b.name, groups[b.name], _last(b, start.end), found.get(b.name)) for b in branches]
    write_csv(lines, os.path.join(out, 'branches.csv'))
    notes = NOTE.format(begin=start.update, last=start.end - 1, first=first).splitlines()
    missing = {name: d.unpaired for name, d in found.items() if d.unpaired}
    if missing:
        told = ', '.join(f'{name} {number}' for name, number in missing.items())
        notes.append(f'- Groups without a counterpart, which are in no difference: {told}.')
    draw(groups, found, start.update, start.end, os.path.join(out, 'branches.png'))
    text = '\n'.join([markdown([lines[0], *(row.values() for row in lines)]), '', *notes, ''])
    with open(os.path.join(out, 'branches.md'), 'w', encoding='utf-8') as f:
        f.write(f'{text}\n![rewards and differences](branches.png)\n')
    return f"{text}\ntable: {os.path.join(out, 'branches.md')}, also as branches.csv; picture: branches.png"


def _last(branch: Branch, update: int) -> Optional[float]:
    """The return of the evaluation after an update; one that went on further may have none."""
    records = read_json_lines(os.path.join(branch.folder, 'log', 'evaluator', 'evaluations.jsonl'))
    return next((record['eval_episode_return'] for record in records if record['train_iter'] == update), None)
