"""
The KL to the start on think_answer: GRPO and PPO with the estimators k1, k2 and k3 and several coefficients, on several
seeds. Writes docs/results/kl.md and docs/results/kl.png.
"""
import os
from typing import Dict, List, NamedTuple, Optional, Tuple

import click
import numpy as np
from transformers import AutoModelForCausalLM

from benchmarks.kl.exact import KLHook, measure
from benchmarks.shared.hardware import machine
from benchmarks.shared.runs import kept  # first, for a quiet import
from benchmarks.shared.runs import ROOT, load_config, middle, run, run_each
from ding_common import read_json_lines
from ding_common.output.picture import finish, line_style, new_figure
from ding_grpo.rl_utils import KL_TYPES

OUT = 'kl'  # under runs/
FINAL_ROWS = 512  # completions per question
CONFIGS = dict(GRPO='think_answer_grpo_kl', PPO='think_answer_ppo_kl')
ENV_STEPS = dict(GRPO=300_000, PPO=120_000)  # DI-engine's PPO takes about four times as long for a token
CELLS = [(0.0, 'k3')] + [(beta, kl_type) for kl_type in KL_TYPES for beta in (0.01, 0.1)]


class Cell(NamedTuple):
    """
    Overview:
        One run: algorithm, coefficient, estimator in the loss, seed.
    """
    algorithm: str
    beta: float
    kl_type: str
    seed: int

    @property
    def setting(self) -> Tuple[str, float, str]:
        return self[:3]

    @property
    def folder(self) -> str:
        return os.path.join(OUT, f'{self.algorithm} {self.kl_type} {self.beta} seed {self.seed}')


class Outcome(NamedTuple):
    """
    Overview:
        What came of a run: environment steps to the first evaluation with a return of 1 (None without one), the reward
        of the last evaluation; at the end, the means over sampled tokens of the exact KL and of the estimators; and the
        curves over environment steps of reward and exact KL.
    """
    solved: Optional[int]
    final: float
    kl: Dict[str, float]
    rewards: List[Tuple[int, float]]
    exact: List[Tuple[int, float]]


def learn(cell: Cell) -> Outcome:
    """The outcome of a cell; a finished one with the same config is not repeated."""
    path = os.path.join('runs', f'{cell.folder}.json')
    settings = repr((load_config(CONFIGS[cell.algorithm]), cell, ENV_STEPS[cell.algorithm]))
    return Outcome(**kept(path, settings, lambda: train(cell)._asdict()))


def train(cell: Cell) -> Outcome:
    """
    Overview:
        Train and measure, in this process.
    """
    curve = os.path.join('runs', f'{cell.folder}.jsonl')
    hook = KLHook.begin(curve)
    r = run(
        CONFIGS[cell.algorithm],
        cell.seed,
        cell.folder,
        bar=1,
        go_on=True,
        learn=dict(learner=dict(log_policy=False, hook=dict(kl=hook)), kl=dict(beta=cell.beta, type=cell.kl_type)),
        max_env_step=ENV_STEPS[cell.algorithm]
    )
    rewards = [(record['envstep'], record['total_reward']) for record in r.records]
    model = AutoModelForCausalLM.from_pretrained(os.path.join(r.folder, 'model', 'last'))
    return Outcome(
        solved=next((record['envstep'] for record in r.records if record['eval_episode_return'] == 1), None),
        final=rewards[-1][1],
        kl=measure(model, KLHook.start, FINAL_ROWS),
        rewards=rewards,
        exact=[(record['envstep'], record['exact']) for record in read_json_lines(curve)],
    )


def label(beta: float, kl_type: str) -> str:
    return f'{kl_type}, beta {beta}' if beta else 'beta 0'


def average(curves: List[List[Tuple[int, float]]]) -> Tuple[np.ndarray, np.ndarray]:
    """The mean of curves with different steps, interpolated where all of them have values."""
    steps = np.linspace(max(c[0][0] for c in curves), min(c[-1][0] for c in curves), 60)
    return steps, np.mean([np.interp(steps, *zip(*c)) for c in curves], axis=0)


def draw(outcomes: Dict[Cell, Outcome], path: str) -> None:
    """
    Overview:
        Reward and exact KL over environment steps, the mean over the seeds, for both algorithms.
    """
    figure, panels = new_figure(4, width=14, height=4.2)
    for column, algorithm in enumerate(CONFIGS):
        for number, (beta, kl_type) in enumerate(CELLS):
            of_seeds = [o for cell, o in outcomes.items() if cell.setting == (algorithm, beta, kl_type)]
            for axes, curves in zip(panels[2 * column:], ([o.rewards for o in of_seeds], [o.exact for o in of_seeds])):
                axes.plot(*average(curves), lw=1.3, label=label(beta, kl_type), **line_style(number))
        for axes, what in zip(panels[2 * column:], ('mean reward, greedy', 'exact KL to the start, nats per token')):
            axes.set(title=algorithm, xlabel='environment steps (tokens)', ylabel=what)
            axes.set_ylim(bottom=0)
    finish(figure, path)


def table(algorithm: str, outcomes: Dict[Cell, Outcome]) -> str:
    """
    Overview:
        A row for each setting of one algorithm, as Markdown.
    """
    head = [
        '`beta`', '`kl_type`', 'solved', 'environment steps until solved', 'last reward', 'exact KL',
        *(f'{name}, estimated' for name in KL_TYPES)
    ]
    lines = ['| ' + ' | '.join(head) + ' |', '|' + '---|' * len(head)]
    for beta, kl_type in CELLS:
        of_seeds = [o for cell, o in outcomes.items() if cell.setting == (algorithm, beta, kl_type)]
        done = [o for o in of_seeds if o.solved is not None]
        cells = [str(beta), f'`{kl_type}`' if beta else '', f'{len(done)} of {len(of_seeds)}']
        cells.append(middle([o.solved for o in done], '.0f') if done else 'never')
        cells.append(middle([o.final for o in of_seeds], '.2f'))
        cells += [middle([o.kl[name] for o in of_seeds], '.3f') for name in ('exact', *KL_TYPES)]
        lines.append('| ' + ' | '.join(cells) + ' |')
    return '\n'.join(lines)


TEXT = """# The KL to the start: k1, k2, k3

Generated by `make bench NAME=kl`. {configs} with `kl.beta` and `kl.type` as in the tables,
and `stop_value` out of reach: {seeds} seeds of {budget}; a step is a sampled token.
DI-engine's PPO takes several times as long for a token, so its runs are shorter and end before it solves the task.
{machine}.

- **Solved**: the greedy policy's return was 1, that is, all four questions were solved. **Last reward** is the mean
  reward of the four greedy completions at the end: at most 2, which is 1 for the answer and 0.5 each for the format
  and for solved.
- **Exact KL** is KL(policy || start) summed over the vocabulary, and the mean over the tokens of {rows} completions
  sampled from the last weights, in nats per token. It is computed from the saved folder by plain `transformers`.
  **k1, k2 and k3** are the three estimators on the same tokens.
- All other columns are medians over the seeds, with smallest and largest in parentheses.

## GRPO

{grpo}

## PPO

{ppo}

![return and exact KL over environment steps](kl.png)

{reading}
"""

READING = '''## What the tables show

- **Estimating.** The medians of k1 and k3 agree with the exact KL within 10 % in every row. k2 is right only near the
  start: once the policy is more than 1 nat per token away, k2 is about 1.8 times too large.
- **k1 in the loss hardly restrains the policy.** Its gradient is that of log pi, which is 0 in expectation under the
  policy that sampled. With `beta` 0.01 GRPO learns and moves away as without a KL. With 0.1 it learns more slowly,
  because the estimate adds noise.
- **k2 and k3 in the loss restrain it.** With `beta` 0.1 GRPO stays within 0.2 nats of the start and solves nothing on
  any seed: think_answer begins with a random model, so that a policy that solves it is about 2.5 nats away.
- **k2 is stronger than k3 at the same `beta`.** k2's gradient is that of KL(policy || start). k3's has a bounded
  weight, 1 - start / policy, so that its pull ceases to grow where the policy is much more probable than the start.
  With 0.01, k3 costs nothing here, and k2 leaves two of five seeds unsolved within the budget.
- **PPO** shows the same order: k1 leaves it as far away as no KL, and k2 and k3 with 0.1 halve the distance. The same
  `beta` restrains it less than GRPO: the two normalise advantages differently, so that their coefficients cannot be
  compared. Within its shorter budget no setting solves the task, and its rewards say little.
- **Which to use.** k3 for a KL in the loss, as in the GRPO paper. k1 for `learn.kl.in_reward`, where its gradient is
  that of the KL. k2 to hold the policy closely.
'''


@click.command()
@click.option('--seeds', default='0,1,2,3,4', show_default=True, help='Comma-separated.')
@click.option('--jobs', default=2, show_default=True, help='Number of parallel runs, of one thread each.')
def main(seeds: str, jobs: int) -> None:
    """Learn with every estimator and coefficient; write docs/results/kl.md and docs/results/kl.png."""
    os.chdir(ROOT)
    numbers = [int(seed) for seed in seeds.split(',')]
    cells = [Cell(name, beta, kl_type, seed) for seed in numbers for name in CONFIGS for beta, kl_type in CELLS]
    outcomes = run_each(learn, cells, jobs)
    draw(outcomes, os.path.join('docs', 'results', 'kl.png'))
    text = TEXT.format(
        configs=' and '.join(f'`config/{name}_config.py`' for name in CONFIGS.values()),
        budget=' and '.join(f'{steps:,} environment steps ({name})' for name, steps in ENV_STEPS.items()),
        seeds=len(numbers),
        machine=machine(jobs),
        rows=4 * FINAL_ROWS,
        grpo=table('GRPO', outcomes),
        ppo=table('PPO', outcomes),
        reading=READING
    )
    with open(os.path.join('docs', 'results', 'kl.md'), 'w') as f:
        f.write(text)
    click.echo(text)


if __name__ == '__main__':
    main()
