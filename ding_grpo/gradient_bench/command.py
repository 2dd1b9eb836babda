"""The command line of the gradient bench."""
import os
import time
from functools import partial
from pathlib import Path
from typing import Any, List

import click
import torch

from ding_grpo.compare.command import Values, make_folder
from ding_grpo.compare.table import write_csv
from ding_grpo.rl_utils import LOSS_PRESETS

from . import corrections, distilled, trees
from .estimate import Bench
from .gradients import ADVANTAGES
from .picture import draw
from .table import LOSS, NAME, distinct, select, table_of, tables

# What can be measured in place of losses and advantages: how, what varies, and the table.
OTHERS = dict(
    self_teacher=(distilled.run, 'loss', partial(table_of, key='loss')),
    corrections=(corrections.run, 'loss', corrections.table),
    trees=(trees.run, 'tree', trees.tables),
)


OPTIONS = [  # name, default, type (None for a flag), help
    ('--losses', 'all', Values(str, tuple(LOSS_PRESETS)), 'Loss presets.'),
    ('--advantages', 'all', Values(str, ADVANTAGES), 'Advantage methods.'),
    ('--group-sizes', '2,4', Values(int, low=2), 'Rows of a group.'),
    (
        '--staleness', '0,0.1,0.5', Values(float, low=0),
        "Standard deviation of the sampling policy's logits around those of the trained policy."
    ),
    ('--seeds', '0,1,2', Values(int, low=0), 'Worlds.'),
    ('--vocabulary', 3, click.IntRange(2, 6), 'Tokens; one ends a row.'),
    ('--length', 3, click.IntRange(1, 6), 'Maximum length.'),
    ('--prompts', 1, click.IntRange(1), 'A batch has a group for each.'),
    ('--rewards', '0,0.2,1', Values(float, low=-1e6), 'Values of a reward.'),
    (
        '--reward-of', 'all', click.Choice(['all', 'first', 'last']),
        'What decides the reward: all tokens of a completion, its first, or its last two.'
    ),
    (
        '--end-logit', 0.0, click.FloatRange(-20, 20),
        'Added to the logit of the token that ends a row; with -4 most rows have the maximum length.'
    ),
    (
        '--samples', 20_000, click.IntRange(2),
        'All batches are enumerated if they are no more than this; otherwise so many are sampled.'
    ),
    ('--calls', 150, click.IntRange(2), 'The same for clip_cov, kl_cov, m2po and real.'),
    (
        '--extra-rows', 0, click.IntRange(0, 8),
        'Rows that are sampled in addition; the longest of a group, as many, are dropped. Needs one prompt.'
    ),
    (
        '--texts', 'one', click.Choice(['one', 'whole', 'divided']),
        'With whole or divided, token 1 ends a text of a completion, and each text is a row, see learn.trajectories.'
    ),
    (
        '--self-teacher', False, None,
        'Measure policy.teacher.self in place of losses and advantages, with an ideal reader of contexts.'
    ),
    (
        '--corrections', False, None,
        'Measure the corrections and masks of policy.learn.off_policy in place of losses and advantages.'
    ),
    (
        '--trees', False, None,
        'Measure policy.collect.tree beside a bundle, with a loss for each reduction. A tree needs at least twice as '
        'many rows as it has leaves.'
    ),
    ('--branches', 2, click.IntRange(2, 8), 'Of a tree at each of its places.'),
    ('--out', f'runs/{NAME}', str, 'Output folder.'),
]


@click.command(
    params=[
        click.Option(
            [name], default=default, show_default=kind is not None, type=kind, is_flag=kind is None, help=text
        ) for name, default, kind, text in OPTIONS
    ]
)
def main(seeds: List[int], out: str, **options: Any) -> None:
    """Compare the gradient of every loss and advantage with the true gradient of the expected reward, in worlds that
    are small enough to enumerate. Writes gradient_bench.md, gradient_bench.csv and gradient_bench.png into --out."""
    chosen = [name for name in OTHERS if options.pop(name)]
    bench = Bench(**options)
    check(bench, chosen)
    make_folder(out)
    torch.set_num_threads(1)
    begun, lines = time.perf_counter(), []
    run, key, table = OTHERS[chosen[0]] if chosen else (Bench.run, 'loss', tables)
    for number, seed in enumerate(seeds, 1):
        lines += run(bench, seed)
        click.echo(f'world {number} of {len(seeds)}, seed {seed}: {time.perf_counter() - begun:.0f} s')
    write_csv(lines, os.path.join(out, f'{NAME}.csv'))
    text = '\n\n'.join([table(lines), notes(bench, lines), f'![bias]({NAME}.png)']) + '\n'
    Path(out, f'{NAME}.md').write_text(text, encoding='utf-8')
    draw(select(lines, loss=LOSS) if key == 'tree' else lines, os.path.join(out, f'{NAME}.png'), key)
    click.echo(text)
    click.echo(f'table: {os.path.join(out, NAME)}.md, every combination in {NAME}.csv; picture: {NAME}.png')


def check(bench: Bench, chosen: List[str]) -> None:
    """Raises a ``BadParameter`` for options that do not go together; ``chosen`` are names of ``OTHERS``."""
    if len(bench.rewards) < 2:
        raise click.BadParameter('at least two values are needed', param_hint='--rewards')
    if bench.extra_rows > 0 and bench.prompts > 1:
        raise click.BadParameter(f'{bench.extra_rows}: needs --prompts 1', param_hint='--extra-rows')
    if len(chosen) > 1:
        raise click.UsageError('--self-teacher, --corrections and --trees: only one can be measured at a time')
    if 'trees' not in chosen:
        return
    if bench.prompts > 1 or bench.length < 3:
        raise click.BadParameter('needs --prompts 1 and a --length of at least 3', param_hint='--trees')
    rows = [size + bench.extra_rows for size in bench.group_sizes]
    if all(number % bench.branches or number < 2 * bench.branches for number in rows):
        raise click.BadParameter(
            f'with --trees one, with --extra-rows, must be a multiple of --branches and at least {2 * bench.branches}',
            param_hint='--group-sizes'
        )


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
    decided = dict(all='', first=' The first token decides the reward.', last=' The last two tokens decide the reward.')
    ends = '' if bench.end_logit == 0 else f' The logit of the end of a row has {bench.end_logit:+g}.'
    texts = '' if bench.texts == 'one' else f' A completion has a text for each token 1 and one more: {bench.texts}.'
    return (
        f"Vocabulary {bench.vocabulary}, length {bench.length}, {bench.prompts} prompt(s), rewards "
        f"{', '.join(f'{r:g}' for r in bench.rewards)}; worlds {', '.join(map(str, distinct(lines, 'seed')))}. Values "
        f"are medians over the worlds.{decided[bench.reward_of]}{ends}{extra}{texts}{sampled} KL of the sampling "
        f"policy to the trained one in nats per completion, by staleness and world: {kls}."
    )
