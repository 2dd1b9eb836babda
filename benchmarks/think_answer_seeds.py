"""
Learn think_answer on several seeds with the shipped config, and go on for 300 updates after it is solved, to see
whether it stays so. Writes docs/think_answer.md and docs/think_answer_seeds.png.
"""
import os
from typing import Dict, List

import click
from runs import ROOT, Run, cell, machine, middle, run

from ding_grpo.worker.curve import draw_curves

AFTER = 300


def behind(r: Run) -> Dict[str, float]:
    """The lowest evaluation in the 300 updates behind the solution, and in the last 100 of these."""
    if r.solved is None:
        return dict(lowest=None, lowest_last=None)
    end = r.solved + AFTER
    assert max(r.evaluations) >= end, f'solved at {r.solved}: give --updates {end} or more'
    return dict(
        lowest=min(v for i, v in r.evaluations.items() if r.solved < i <= end),
        lowest_last=min(v for i, v in r.evaluations.items() if end - 100 < i <= end),
    )


def report(runs: List[Run], updates: int) -> str:
    """
    Overview:
        The results as Markdown.
    """
    lines = [
        f"| {r.seed} | {cell(r.solved, 'd')} | {cell(r.seconds, '.1f')} | {cell(behind(r)['lowest'], '.2f')} | "
        f"{cell(behind(r)['lowest_last'], '.2f')} |" for r in runs
    ]
    done = [r for r in runs if r.solved is not None]
    summary = f'Solved on {len(done)} of {len(runs)} seeds'
    if done:
        summary += (
            f"; median {middle([r.solved for r in done], '.0f')} updates and "
            f"{middle([r.seconds for r in done], '.1f')} s of training, evaluation included, set-up apart"
        )
    return '\n'.join(
        [
            '# think_answer by GRPO: five seeds, and what comes after',
            '',
            '`make seeds` wrote this page: `config/think_answer_grpo_config.py` with `stop_value` out of reach, '
            f'{updates} updates, greedy evaluation on all four questions every 10. {machine()}.',
            '',
            f'{summary}.',
            '',
            '| seed | updates until 1.0 | seconds until 1.0 | lowest evaluation in the 300 updates behind it | '
            'lowest in the last 100 of these |',
            '|---|---|---|---|---|',
            *lines,
            '',
            '![curves of all seeds](think_answer_seeds.png)',
            '',
        ]
    )


@click.command()
@click.option('--seeds', default='0,1,2,3,4', help='Comma-separated.')
@click.option('--updates', default=600, help='Updates of each run.')
def main(seeds: str, updates: int) -> None:
    """Learn on several seeds; write docs/think_answer.md and docs/think_answer_seeds.png."""
    os.chdir(ROOT)
    runs = [
        run(
            'think_answer_grpo',
            int(seed),
            os.path.join('seeds', f'seed {seed}'),
            1,
            go_on=True,
            max_train_iter=updates
        ) for seed in seeds.split(',')
    ]
    draw_curves({f'seed {r.seed}': r.folder for r in runs}, os.path.join('docs', 'think_answer_seeds.png'))
    text = report(runs, updates)
    with open(os.path.join('docs', 'think_answer.md'), 'w') as f:
        f.write(text)
    click.echo(text)
    held = [r.solved is not None and behind(r)['lowest'] >= 0.75 and behind(r)['lowest_last'] == 1 for r in runs]
    if not all(held):
        raise click.ClickException(f'{held.count(False)} of {len(held)} seeds were not solved or did not stay so')


if __name__ == '__main__':
    main()
