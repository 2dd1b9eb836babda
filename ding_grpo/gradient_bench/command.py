"""The command line of the gradient bench."""
import os
import time
from typing import Any, List

import click
import torch

from ding_grpo.compare.command import Values, make_folder
from ding_grpo.compare.table import write_csv
from ding_grpo.rl_utils import LOSS_PRESETS

from . import distilled
from .estimate import Bench
from .gradients import ADVANTAGES
from .picture import draw
from .table import NAME, distinct, select, table_of, tables


@click.command()
@click.option('--losses', default='all', show_default=True, type=Values(str, tuple(LOSS_PRESETS)), help='Loss presets.')
@click.option('--advantages', default='all', show_default=True, type=Values(str, ADVANTAGES), help='Advantage methods.')
@click.option('--group-sizes', default='2,4', show_default=True, type=Values(int, low=2), help='Rows of a group.')
@click.option(
    '--staleness',
    default='0,0.1,0.5',
    show_default=True,
    type=Values(float, low=0),
    help="Standard deviation of the sampling policy's logits around those of the trained policy."
)
@click.option('--seeds', default='0,1,2', show_default=True, type=Values(int, low=0), help='Worlds.')
@click.option('--vocabulary', default=3, show_default=True, type=click.IntRange(2, 6), help='Tokens; one ends a row.')
@click.option('--length', default=3, show_default=True, type=click.IntRange(1, 6), help='Maximum length.')
@click.option('--prompts', default=1, show_default=True, type=click.IntRange(1), help='A batch has a group for each.')
@click.option(
    '--rewards', default='0,0.2,1', show_default=True, type=Values(float, low=-1e6), help='Values of a reward.'
)
@click.option(
    '--samples',
    default=20_000,
    show_default=True,
    type=click.IntRange(2),
    help='All batches are enumerated if they are no more than this; otherwise so many are sampled.'
)
@click.option(
    '--calls',
    default=150,
    show_default=True,
    type=click.IntRange(2),
    help='The same for clip_cov, kl_cov, m2po and real.'
)
@click.option(
    '--extra-rows',
    default=0,
    show_default=True,
    type=click.IntRange(0, 8),
    help='Rows that are sampled in addition; the longest of a group, as many, are dropped. Needs one prompt.'
)
@click.option(
    '--texts',
    default='one',
    show_default=True,
    type=click.Choice(['one', 'whole', 'divided']),
    help='With whole or divided, token 1 ends a text of a completion, and each text is a row, see learn.trajectories.'
)
@click.option(
    '--self-teacher',
    is_flag=True,
    help='Measure policy.teacher.self in place of losses and advantages, with an ideal reader of contexts.'
)
@click.option('--out', default=f'runs/{NAME}', show_default=True, help='Output folder.')
def main(seeds: List[int], out: str, self_teacher: bool, **options: Any) -> None:
    """Compare the gradient of every loss and advantage with the true gradient of the expected reward, in worlds that
    are small enough to enumerate. Writes gradient_bench.md, gradient_bench.csv and gradient_bench.png into --out."""
    bench = Bench(**options)
    if len(bench.rewards) < 2:
        raise click.BadParameter('at least two values are needed', param_hint='--rewards')
    if bench.extra_rows > 0 and bench.prompts > 1:
        raise click.BadParameter(f'{bench.extra_rows}: needs --prompts 1', param_hint='--extra-rows')
    make_folder(out)
    torch.set_num_threads(1)
    begun, lines = time.perf_counter(), []
    for number, seed in enumerate(seeds, 1):
        lines += distilled.run(bench, seed) if self_teacher else bench.run(seed)
        click.echo(f'world {number} of {len(seeds)}, seed {seed}: {time.perf_counter() - begun:.0f} s')
    write_csv(lines, os.path.join(out, f'{NAME}.csv'))
    found = table_of(lines, 'loss') if self_teacher else tables(lines)
    text = '\n\n'.join([found, notes(bench, lines), f'![bias]({NAME}.png)']) + '\n'
    with open(os.path.join(out, f'{NAME}.md'), 'w', encoding='utf-8') as f:
        f.write(text)
    draw(lines, os.path.join(out, f'{NAME}.png'))
    click.echo(text)
    click.echo(f'table: {os.path.join(out, NAME)}.md, every combination in {NAME}.csv; picture: {NAME}.png')


def notes(bench: Bench, lines: List[dict]) -> str:
    """What was measured, as Markdown."""
    kls = '; '.join(
        f'{s:g}: ' + ', '.join(f'{kl:.3f}' for kl in distinct(select(lines, staleness=s), 'kl'))
        for s in distinct(lines, 'staleness')
    )
    exact = all(line['standard_error'] == 0 for line in lines)
    sampled = '' if exact else ' ± is the standard error of the mean step where batches were sampled.'
    dropped = bench.extra_rows
    extra = f' Of G + {dropped} sampled rows, the longest {dropped} are dropped.' if dropped else ''
    texts = '' if bench.texts == 'one' else f' A completion has a text for each token 1 and one more: {bench.texts}.'
    return (
        f"Vocabulary {bench.vocabulary}, length {bench.length}, {bench.prompts} prompt(s), rewards "
        f"{', '.join(f'{r:g}' for r in bench.rewards)}; worlds {', '.join(map(str, distinct(lines, 'seed')))}. Values "
        f"are medians over the worlds.{extra}{texts}{sampled} KL of the sampling policy to the trained one in nats per "
        f"completion, by staleness and world: {kls}."
    )
