"""
Learn CartPole-v1 on several seeds with the shipped config until the greedy and the sampled policy reach the bar, and go
on for 200,000 environment steps, to see whether they stay there. Writes docs/cartpole.md and docs/cartpole_seeds.png.
"""
import os
from typing import List

import click
from runs import ROOT, Run, cell, machine, middle, run

from ding_grpo.worker.curve import draw_curves

BAR, AFTER, MOST = 475, 200_000, 250_000


def at_bar(r: Run) -> int:
    """Environment steps at the first evaluation that reaches the bar."""
    return next(e['envstep'] for e in r.records if e['train_iter'] == r.solved)


def lowest(r: Run) -> float:
    """The lowest evaluation from the bar on."""
    return min(value for update, value in r.evaluations.items() if update >= r.solved)


def report(runs: List[Run]) -> str:
    """
    Overview:
        The results as Markdown.
    """
    lines = []
    for r in runs:
        steps, behind, low = (None, None, None)
        if r.solved is not None:
            steps, behind, low = at_bar(r), r.records[-1]['envstep'] - at_bar(r), lowest(r)
        lines.append(
            f"| {r.seed} | {cell(steps, ',d')} | {cell(r.seconds, '.1f')} | {cell(behind, ',d')} | {cell(low, '.2f')} |"
        )
    done = [r for r in runs if r.solved is not None]
    summary = f'Reached on {len(done)} of {len(runs)} seeds'
    if done:
        summary += (
            f"; median {middle([at_bar(r) for r in done], ',.0f')} environment steps and "
            f"{middle([r.seconds for r in done], '.1f')} s, evaluation included"
        )
    return '\n'.join(
        [
            '# CartPole-v1 by GRPO: five seeds, and what comes after',
            '',
            '`make seeds-cartpole` wrote this page: `config/cartpole_grpo_config.py`, `stop_value` out of reach. Every '
            'three updates the greedy and the sampled policy run 100 episodes each, from 100 starts that training never '
            f'has; the bar is a mean return of {BAR} of both, and what is given is the lower one of the two. '
            f'{machine()}.',
            '',
            f'{summary}.',
            '',
            '| seed | steps to the bar | seconds to the bar | steps behind it | lowest evaluation from the bar on |',
            '|---|---|---|---|---|',
            *lines,
            '',
            '![curves of all seeds](cartpole_seeds.png)',
            '',
        ]
    )


@click.command()
@click.option('--seeds', default='0,1,2,3,4', help='Comma-separated.')
def main(seeds: str) -> None:
    """Learn on several seeds; write docs/cartpole.md and docs/cartpole_seeds.png."""
    os.chdir(ROOT)
    runs = [
        run(
            'cartpole_grpo',
            int(seed),
            os.path.join('seeds_cartpole', f'seed {seed}'),
            BAR,
            go_on=True,
            evaluator=dict(eval_freq=3, samples_per_start=1),
            max_env_step=MOST + AFTER
        ) for seed in seeds.split(',')
    ]
    draw_curves({f'seed {r.seed}': r.folder for r in runs}, os.path.join('docs', 'cartpole_seeds.png'))
    text = report(runs)
    with open(os.path.join('docs', 'cartpole.md'), 'w') as f:
        f.write(text)
    click.echo(text)
    held = [r.solved is not None and lowest(r) >= BAR and r.records[-1]['envstep'] - at_bar(r) >= AFTER for r in runs]
    if not all(held):
        raise click.ClickException(f'{held.count(False)} of {len(held)} seeds did not reach the bar or stay there')


if __name__ == '__main__':
    main()
