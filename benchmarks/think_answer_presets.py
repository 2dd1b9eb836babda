"""
Learn think_answer with every loss preset on several seeds. Writes docs/presets.md.
"""
import os
from typing import Dict, List

import click
from runs import ROOT, Run, machine, middle, run

from ding_grpo.rl_utils import LOSS_PRESETS


def report(runs: Dict[str, List[Run]], updates: int) -> str:
    """
    Overview:
        The results as Markdown.
    """
    lines = []
    for name, of_seeds in runs.items():
        done = [r for r in of_seeds if r.solved is not None]
        updates_needed = middle([r.solved for r in done], '.0f') if done else ''
        seconds = middle([r.seconds for r in done], '.1f') if done else ''
        best = middle([max(r.evaluations.values()) for r in of_seeds], '.2f')
        lines.append(f'| `{name}` | {len(done)} of {len(of_seeds)} | {updates_needed} | {seconds} | {best} |')
    return '\n'.join(
        [
            '# think_answer with every loss preset',
            '',
            '`make presets` wrote this page: `config/think_answer_grpo_config.py` with `learn.loss` as named and the '
            "preset's own advantages (`adv_method=None`), else unchanged: one learning rate, tuned for no preset in "
            f'particular. A seed ends when it is solved, or after {updates} updates. Medians over the solved seeds, '
            f'smallest and largest in parentheses. {machine()}.',
            '',
            '| preset | seeds solved | updates until 1.0 | seconds until 1.0 | best evaluation, all seeds |',
            '|---|---|---|---|---|',
            *lines,
            '',
        ]
    )


@click.command()
@click.option('--seeds', default='0,1,2,3,4', help='Comma-separated.')
@click.option('--updates', default=400, help='Most updates of each run.')
@click.option('--presets', default=','.join(LOSS_PRESETS), help='Comma-separated.')
def main(seeds: str, updates: int, presets: str) -> None:
    """Learn with every preset on several seeds; write docs/presets.md."""
    os.chdir(ROOT)
    runs: Dict[str, List[Run]] = {}
    for name in presets.split(','):
        runs[name] = [
            run(
                'think_answer_grpo',
                int(seed),
                os.path.join('presets', f'{name} seed {seed}'),
                bar=1,
                learn=dict(loss=name, adv_method=None),
                max_train_iter=updates
            ) for seed in seeds.split(',')
        ]
    text = report(runs, updates)
    with open(os.path.join('docs', 'presets.md'), 'w') as f:
        f.write(text)
    click.echo(text)


if __name__ == '__main__':
    main()
