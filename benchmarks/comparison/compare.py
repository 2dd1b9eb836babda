"""
A fair comparison of GRPO, a critic on its rollouts, and DI-engine's PPO. Every side chooses among equally many settings
on two seeds, and is reported on ten others. Writes benchmarks/results/comparison.json,
docs/results/comparison.md and its pictures.
"""
import json
import os
import signal
import sys
from importlib.metadata import version
from typing import Any, Dict, List, Tuple

import click

from benchmarks.comparison.page import chosen, draw, page
from benchmarks.comparison.runs import OUT, Work, all_tries, choose, outcome, run_all, warm_start, works_of
from benchmarks.comparison.tasks import EVERY, REPORTED_SEEDS, TASKS, TUNING_SEEDS
from benchmarks.shared.hardware import commit, machine
from benchmarks.shared.runs import ROOT

RECORD = os.path.join('benchmarks', 'results', 'comparison.json')
PAGE = os.path.join('docs', 'results', 'comparison.md')
STAGES = ('all', 'tuning', 'page')
VERSIONS = ('ding-grpo', 'DI-engine', 'torch', 'gymnasium', 'transformers')

Results = Dict[Work, Dict[str, Any]]


def conditions(jobs: int) -> Dict[str, Any]:
    """What belongs to each result."""
    versions = ', '.join(f'{name} {version(name)}' for name in VERSIONS)
    return dict(machine=machine(jobs), commit=commit(), versions=versions)


def tune(task: str, jobs: int, about: Dict[str, Any]) -> Tuple[Results, Dict[str, List[int]]]:
    """The runs of all tries, and the number of the chosen one of each side, in a list."""
    found = run_all(works_of(task, all_tries(TASKS[task]), TUNING_SEEDS), jobs, f'{task}, tuning', about)
    picked = {}
    for side, numbers in all_tries(TASKS[task]).items():
        tried = [
            [outcome(r, TASKS[task].bar) for w, r in found.items() if (w.side, w.attempt) == (side, n)] for n in numbers
        ]
        picked[side] = [choose(tried, TASKS[task].budget)]
        click.echo(f'{task}: {side} has chosen try {picked[side][0]}', err=True)
    return found, picked


def entry(task: str, found: Results) -> Dict[str, Any]:
    """A task in the record: all its runs with their settings and results. Conditions are listed once."""
    about: List[Dict[str, Any]] = []
    runs = []
    for work, result in found.items():
        result = dict(result)
        of_run = {name: result.pop(name) for name in ('machine', 'commit', 'versions')}
        if of_run not in about:
            about.append(of_run)
        keys = EVERY[task].tries[work.side][work.attempt]
        runs.append(
            dict(
                side=work.side,
                attempt=work.attempt,
                seed=work.seed,
                keys=keys,
                conditions=about.index(of_run),
                **result,
            )
        )
    return dict(
        bar=EVERY[task].bar,
        budget=EVERY[task].budget,
        interval=EVERY[task].interval,
        tuning_seeds=TUNING_SEEDS,
        conditions=about,
        runs=runs,
    )


def read_record() -> Dict[str, Any]:
    if not os.path.exists(RECORD):
        return {}
    with open(RECORD) as f:
        return json.load(f)


def write_record(record: Dict[str, Any]) -> None:
    """A line for each run, so that a change of one shows as one line."""
    parts = []
    for task in (name for name in TASKS if name in record):
        head = {key: value for key, value in record[task].items() if key != 'runs'}
        runs = ',\n  '.join(json.dumps(run) for run in record[task]['runs'])
        parts.append(f' {json.dumps(task)}: {json.dumps(head)[:-1]}, "runs": [\n  {runs}\n ]}}')
    with open(f'{RECORD}.part', 'w') as f:
        f.write('{\n' + ',\n'.join(parts) + '\n}\n')
    os.replace(f'{RECORD}.part', RECORD)


def write_page(record: Dict[str, Any], pictures: List[str]) -> None:
    """The page of all tasks of the record, and the pictures of some."""
    for task in pictures:
        draw(record[task], os.path.join('docs', 'results', f'comparison_{task}.png'))
    with open(PAGE, 'w') as f:
        f.write(page(record))


@click.command()
@click.option('--tasks', default=','.join(TASKS), show_default=True, help='Comma-separated, in this order.')
@click.option(
    '--jobs', default=2, show_default=True, type=click.IntRange(1), help='Runs at a time, each of one thread.'
)
@click.option(
    '--stage',
    default='all',
    show_default=True,
    type=click.Choice(STAGES),
    help='tuning: the tries alone. page: the page from the record alone, without a run.'
)
def main(tasks: str, jobs: int, stage: str) -> None:
    """Compare on each task in turn. Finished runs in runs/comparison are not repeated."""
    os.chdir(ROOT)
    names = tasks.split(',')
    unknown = [name for name in names if name not in TASKS]
    if unknown:
        raise click.BadParameter(f'{unknown[0]!r}: must be of {", ".join(TASKS)}', param_hint='--tasks')
    if stage == 'page':
        record = read_record()
        write_page(record, list(record))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes of the runs end too
    os.makedirs(OUT, exist_ok=True)
    about = conditions(jobs)
    for task in names:
        warm_start(task)
        found, picked = tune(task, jobs, about)
        if stage == 'tuning':
            continue
        found.update(run_all(works_of(task, picked, REPORTED_SEEDS), jobs, f'{task}, report', about))
        record = read_record()
        record[task] = entry(task, found)
        assert {side: [n] for side, n in chosen(record[task]).items()} == picked
        write_record(record)
        write_page(record, [task])
        click.echo(f'{task}: finished, see {PAGE}', err=True)


if __name__ == '__main__':
    main()
