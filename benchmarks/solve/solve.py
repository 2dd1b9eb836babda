"""
think_answer beside TRL: seed by seed each side learns until all four questions are solved, greedily: right, in the
full format, and ended by the end-of-sequence token. Both have the shipped config's model, sizes, rewards, learning
rate and clipping; TRL has no entropy bonus, so this project is also run without. Writes benchmarks/results/results.json
and docs/results/solve.md.
"""
import json
import math
import os
import shutil
import statistics
import subprocess
import tempfile
from typing import Any, Dict, List, NamedTuple, Optional

import click
import torch
from tabulate import tabulate

from benchmarks.beside_trl.protocol import versions
from benchmarks.shared.hardware import machines
from benchmarks.shared.paths import ROOT, command
from benchmarks.shared.records import add
from benchmarks.shared.runs import CONSTANT, cell, kept, load_config, middle, run, run_each
from benchmarks.solve.steps import PADS, compare
from benchmarks.solve.work import CONFIG, make_work
from ding_common import read_json_lines

STEPS = 100  # updates of the comparison step by step
OURS, PLAIN, PEER = 'this project', 'this project, no entropy bonus', 'TRL'


class Work(NamedTuple):
    """
    Overview:
        A run to make.
    """
    side: str
    seed: int
    updates: int
    peer_python: str


class Solved(NamedTuple):
    """
    Overview:
        Update and training time, evaluations included, of the first evaluation that was all right, None if there is
        none; and seconds of an update.
    """
    updates: Optional[int]
    seconds: Optional[float]
    update: float
    versions: Dict[str, str]


def peer(work: Work) -> Solved:
    """TRL's run, in a process and environment of its own."""
    with tempfile.TemporaryDirectory() as folder:
        make_work(work.seed, work.updates, folder)
        env = dict(os.environ, OMP_NUM_THREADS=str(torch.get_num_threads()), HF_HUB_OFFLINE='1')
        words = command(work.peer_python, 'solve.peer', folder, str(work.seed))
        done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
        if done.returncode:
            raise click.ClickException(f'TRL ended with {done.returncode}:\n{done.stderr[-3000:]}')
        return Solved(**json.loads(done.stdout))


def ours(work: Work) -> Solved:
    """This project's run."""
    learn = dict(lr_scheduler=CONSTANT)  # as in TRL's run
    if work.side == PLAIN:
        learn['entropy'] = dict(weight=0.0)
    folder = os.path.join('solve', f'{work.side} seed {work.seed}')
    r = run(CONFIG, work.seed, folder, 1, learn=learn, max_train_iter=work.updates)
    metrics = read_json_lines(os.path.join(r.folder, 'log', 'learner', 'metrics.jsonl'))
    shutil.rmtree(os.path.join(r.folder, 'ckpt'))
    return Solved(r.solved, r.seconds, metrics[-1]['seconds'] / len(metrics), versions())


def solve(work: Work) -> Solved:
    """
    Overview:
        A run, or what was kept of it.
    """
    path = os.path.join('runs', 'solve', f'{work.side} seed {work.seed}.json')
    settings = f"{load_config(CONFIG)} {work.updates} {torch.get_num_threads()}"
    return Solved(**kept(path, settings, lambda: (peer if work.side == PEER else ours)(work)._asdict()))


def report(sides: Dict[str, Dict[int, Solved]], steps: List[List[str]], updates: int, entry: Dict[str, Any]) -> str:
    """
    Overview:
        docs/results/solve.md.
    """
    rows = []
    for name, runs in sides.items():
        done = [r for r in runs.values() if r.updates]
        half = sorted(math.inf if r.updates is None else r.updates for r in runs.values())[(len(runs) - 1) // 2]
        rows.append(
            [
                name, f'{len(done)} of {len(runs)}', 'never' if half == math.inf else f'{half:.0f}',
                middle([r.updates for r in done], '.0f') if done else 'never',
                middle([r.seconds for r in done], '.1f') if done else 'never',
                middle([r.update for r in runs.values()], '.3f')
            ]
        )
    seeds = [[seed, *(cell(runs[seed].updates, '.0f') for runs in sides.values())] for seed in sides[OURS]]
    policy = load_config(CONFIG)[0].policy
    return TEXT.format(
        updates=updates,
        rows=policy.collect.groups * policy.group_size,
        steps=policy.collect.groups // policy.learn.batch_groups,
        jobs=entry['jobs'],
        machines=machines([entry]),
        table=tabulate(
            rows, ['', 'solved', 'median of all', 'updates', 'seconds', 's an update'],
            tablefmt='pipe',
            disable_numparse=True
        ),
        seeds=tabulate(seeds, ['seed', *sides], tablefmt='pipe', disable_numparse=True),
        step_table=tabulate(
            steps, ['optimizer steps', *(f'padding token {pad} there' for pad in PADS)],
            tablefmt='pipe',
            disable_numparse=True
        ),
        versions=', '.join(map(' '.join, entry['versions'].items()))
    )


def result(sides: Dict[str, Dict[int, Solved]], jobs: int) -> Dict[str, Any]:
    """
    Overview:
        The entry of benchmarks/results/results.json: seconds as medians over the seeds that were solved, by each side.
    """
    seeds = len(sides[OURS])
    found: Dict[str, Any] = dict(work='solve_think_answer', unit='s', threads=1, jobs=jobs, seeds=seeds, rounds=seeds)
    for key, name in (('ours', OURS), ('plain', PLAIN), ('peer', PEER)):
        seconds = [r.seconds for r in sides[name].values() if r.updates]
        found[f'solved_{key}'] = len(seconds)
        if seconds:
            found.update({key: statistics.median(seconds), f'{key}_low': min(seconds), f'{key}_high': max(seconds)})
        found[f'update_{key}'] = statistics.median(r.update for r in sides[name].values())
    versions = {**next(iter(sides[PEER].values())).versions, **next(iter(sides[OURS].values())).versions}
    return dict(found, versions=versions)


TEXT = """# Time to solve think_answer compared with TRL

Generated by `make bench NAME=solve`.

Both sides use the model, prompts, rewards, group size, rows per update and clipping of
`config/think_answer_grpo_config.py`, its first learning rate in every update, and advantages without the standard
deviation. An update is {rows} completions and {steps} optimizer steps. Greedy evaluation on all four questions runs
every 10 updates, for at most {updates} updates. A question is solved when the completion is right, in the full format,
and ended by the end-of-sequence token.
Seconds are training time including evaluation, without set-up; runs of one thread, {jobs} at a time, in the order of
the seeds, so that both sides meet the same conditions. {versions}. Measured on:

{machines}

The shipped config has an entropy bonus, whose weight was tuned on this task
([sweeps](../recipes/texts.md#think_answer)): with it more seeds are solved, and stay solved
([five seeds](think_answer_seeds.md)).
TRL has none, so this project is also run without.

{table}

"Median of all": updates, where a seed that was not solved counts as never. The other columns: medians over the seeds
that were solved, smallest and largest in parentheses.

## Step by step

Without the bonus, this project and TRL run the same algorithm. From the same weights, TRL took the same optimizer steps
on the rows that were sampled here (seed 0, in float64): advantages, mini-batches and prompts are those of this project,
all else is TRL's own. The table has the distance of the weights from each other, divided by the distance from where
they began:

{step_table}

`transformers` never trains the input embedding of the padding token; this project's model does, where a row samples
that token. With this one row of weights trained on both sides, only rounding is left, which grows after about 50
steps.

What differs between the two in a run:

- **Mini-batches.** TRL shuffles the rows of an update before it divides them into mini-batches. This project keeps the
  rows of a group together.
- **Questions.** Each question is asked equally often in an update of this project. TRL draws from a list with 100
  copies of each.
- **Random numbers**, so a seed has nothing in common on both sides.

## Every seed

Updates until solved:

{seeds}
"""


@click.command()
@click.option('--peer-python', required=True, type=click.Path(exists=True), help='Of an environment with TRL.')
@click.option('--seeds', default=20, show_default=True, help='How many.')
@click.option('--updates', default=400, show_default=True, help='At most, of each run.')
@click.option('--jobs', default=2, show_default=True, help='Runs at a time, of one thread each.')
def main(peer_python: str, seeds: int, updates: int, jobs: int) -> None:
    """Learn on several seeds, on both sides in turn; print and write what it took. Finished runs are kept."""
    os.chdir(ROOT)
    os.makedirs(os.path.join('runs', 'solve'), exist_ok=True)
    names = (OURS, PLAIN, PEER)
    works = [Work(name, seed, updates, os.path.abspath(peer_python)) for seed in range(seeds) for name in names]
    found = run_each(solve, works, jobs)
    sides = {name: {work.seed: r for work, r in found.items() if work.side == name} for name in names}
    entry = next(r for r in add([result(sides, jobs)]) if r['work'] == 'solve_think_answer')
    text = report(sides, compare(peer_python, 0, STEPS), updates, entry)
    with open(os.path.join('docs', 'results', 'solve.md'), 'w') as f:
        f.write(text)
    click.echo(text)


if __name__ == '__main__':
    main()
