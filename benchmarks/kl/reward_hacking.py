"""
Reward hacking: think_answer learns from a reward model alone, with and without a KL to the start. Trains the reward
model first (config/think_answer_reward_model_config.py). Writes docs/results/reward_hacking.md and
docs/results/reward_hacking.png.
"""
import hashlib
import os
import runpy
from functools import partial
from typing import Dict, List, NamedTuple, Tuple

import click
import numpy as np

from benchmarks.kl.exact import KLHook
from benchmarks.shared.hardware import machine
from benchmarks.shared.runs import kept  # first, for a quiet import
from benchmarks.shared.runs import ROOT, load_config, middle, run, run_each
from ding_common import read_json_lines
from ding_common.output.picture import finish, line_style, new_figure
from dizoo_llm.models.reward_model import RewardModel
from dizoo_llm.tasks.think_answer import ThinkAnswerTask
from dizoo_llm.train_reward_model import train

MODEL = os.path.join('runs', 'think_answer_reward_model', 'model')
BETAS = (0.0, 0.05, 0.2)


class Work(NamedTuple):
    """
    Overview:
        One run.
    """
    beta: float
    seed: int


class Outcome(NamedTuple):
    """
    Overview:
        Curves of one run over environment steps: the reward model's score and the true score of the sampled
        completions, and the exact KL to the start in nats per token.
    """
    score: List[Tuple[int, float]]
    true: List[Tuple[int, float]]
    kl: List[Tuple[int, float]]


def learn(updates: int, model: str, work: Work) -> Outcome:
    """The outcome of a run; a finished one with the same config and reward model is not repeated."""
    folder = os.path.join('reward_hacking', f'beta {work.beta} seed {work.seed}')
    settings = repr((load_config('think_answer_grpo'), model, work, updates))
    result = kept(
        os.path.join('runs', f'{folder}.json'), settings, lambda: train_policy(folder, updates, work)._asdict()
    )
    return Outcome(**result)


def train_policy(folder: str, updates: int, work: Work) -> Outcome:
    """
    Overview:
        Learn from the reward model alone: the task's own parts have the weight 0.
    """
    curve = os.path.join('runs', f'{folder}.jsonl')
    r = run(
        'think_answer_grpo',
        work.seed,
        folder,
        bar=1,
        go_on=True,
        learn=dict(learner=dict(hook=dict(kl=KLHook.begin(curve))), kl=dict(beta=work.beta), entropy=dict(weight=0.0)),
        env=dict(reward_models=[dict(pretrained=MODEL)], reward_weights=dict.fromkeys(ThinkAnswerTask.weights, 0.0)),
        max_train_iter=updates
    )
    metrics = read_json_lines(os.path.join(r.folder, 'log', 'learner', 'metrics.jsonl'))

    def true_score(record: Dict[str, float]) -> float:
        return sum(weight * record[f'reward_{name}_mean'] for name, weight in ThinkAnswerTask.weights.items())

    return Outcome(
        score=[(record['envstep'], record['reward_reward_model_mean']) for record in metrics],
        true=[(record['envstep'], true_score(record)) for record in metrics],
        kl=[(record['envstep'], record['exact']) for record in read_json_lines(curve)],
    )


def draw(outcomes: Dict[Work, Outcome], path: str) -> None:
    """
    Overview:
        Score, true score and KL over environment steps, a line for each seed.
    """
    figure, panels = new_figure(3, width=13, height=4)
    for work, outcome in outcomes.items():
        style = dict(line_style(BETAS.index(work.beta)), lw=1.0, alpha=0.8)
        style['label'] = f'beta {work.beta}'
        for axes, curve in zip(panels, outcome):
            axes.plot(*zip(*curve), **style)
    titles = ("reward model's score (learned from)", 'true score (not learned from)', 'exact KL to the start')
    for axes, title, label in zip(panels, titles, ('score', 'score, at most 2', 'nats per token')):
        axes.set(title=title, xlabel='environment steps (tokens)', ylabel=label)
    finish(figure, path)


def table(outcomes: Dict[Work, Outcome]) -> str:
    """Means over the first and the last ten updates of each setting, as Markdown: median over the seeds and range."""
    head = ['`beta`', "model's score, first", 'last', 'true score, first', 'last', 'highest', 'exact KL, last']
    lines = ['| ' + ' | '.join(head) + ' |', '|' + '---|' * len(head)]
    for beta in BETAS:
        of_seeds = [outcome for work, outcome in outcomes.items() if work.beta == beta]
        cells = [str(beta)]
        for curves in ([o.score for o in of_seeds], [o.true for o in of_seeds]):
            values = [[value for _, value in curve] for curve in curves]
            cells += [middle([float(np.mean(v[:10])) for v in values], '.2f')]
            cells += [middle([float(np.mean(v[-10:])) for v in values], '.2f')]
        smooth = [np.convolve([value for _, value in o.true], np.ones(10) / 10, 'valid') for o in of_seeds]
        cells += [middle([float(x.max()) for x in smooth], '.2f'), middle([o.kl[-1][1] for o in of_seeds], '.2f')]
        lines.append('| ' + ' | '.join(cells) + ' |')
    return '\n'.join(lines)


def digest() -> str:
    """Of the reward model's weights, which training writes anew."""
    with open(os.path.join(MODEL, 'model.safetensors'), 'rb') as f:
        return hashlib.sha256(f.read()).hexdigest()


def score_of_right() -> float:
    """The reward model's mean score of the four right completions."""
    task = ThinkAnswerTask()
    problems = [task.problem(i) for i in range(len(task))]
    completions = [f'</think> <answer> {problem.answer} </answer>' for problem in problems]
    return float(np.mean(RewardModel(dict(pretrained=MODEL)).scores(problems, completions)))


def greedy(work: Work) -> List[str]:
    """The greedy completions at the end of a run."""
    path = os.path.join('runs', 'reward_hacking', f'beta {work.beta} seed {work.seed}', 'log', 'evaluator')
    last = read_json_lines(os.path.join(path, 'evaluations.jsonl'))[-1]
    return [row['completion'] for row in last['completions']]


TEXT = """# Reward hacking

Generated by `make bench NAME=reward_hacking`. think_answer learns from a reward model alone, for {updates} updates on
{seeds} seeds: `env.reward_models`, `env.reward_weights` of 0 for the task's own parts, and no entropy bonus. The model
was trained on 2,000 pairs of random variations of right completions (`config/think_answer_reward_model_config.py`). Its
accuracy on 500 held-out pairs is {accuracy:.1%}. {machine}.

The true score is what the task itself would give: 1 for the right answer, 0.5 each for the format and for both
together. Scores are means over the sampled completions of an update, here over the first and the last ten updates,
and the highest mean over ten. Medians over the seeds, smallest and largest in parentheses.

{table}

The model gives the four right completions a score of {right:.2f} on average. Greedy completions of one question at the
end of each run:

| `beta` | seed | completion |
|---|---|---|
{samples}

![score, true score and KL over environment steps](reward_hacking.png)

{reading}
"""
READING = """**Interpretation.** On all seeds the model's score rises from about -1 to between 3 and 3.8, close to what
it gives a right completion. The true score stays below a quarter of its maximum of 2, and no question is solved: the
policies repeat the tags of an answer, which no training pair contains. A KL to the start helps a little. With
`beta=0.05` the score is the same and the true score about twice as high (0.31 in place of 0.17), because the policy
keeps more of its randomness; with 0.2 the score is lower too. It cannot help more: the start is a random model, and
does not know what a right completion looks like. Watch the true score, or another measure that is not learned from."""


@click.command()
@click.option('--seeds', default='0,1,2', show_default=True, help='Comma-separated.')
@click.option('--updates', default=200, show_default=True, help='Updates of each run.')
@click.option('--jobs', default=2, show_default=True, help='Number of parallel runs, of one thread each.')
def main(seeds: str, updates: int, jobs: int) -> None:
    """Learn from a reward model at several KL coefficients; write docs/results/reward_hacking.md and .png."""
    os.chdir(ROOT)
    config = runpy.run_path(os.path.join('config', 'think_answer_reward_model_config.py'))['main_config']
    _, accuracy = train(config, 0)
    works = [Work(beta, int(seed)) for seed in seeds.split(',') for beta in BETAS]
    outcomes = run_each(partial(learn, updates, digest()), works, jobs)
    draw(outcomes, os.path.join('docs', 'results', 'reward_hacking.png'))
    text = TEXT.format(
        updates=updates,
        seeds=len(seeds.split(',')),
        accuracy=accuracy,
        machine=machine(jobs),
        table=table(outcomes),
        right=score_of_right(),
        samples='\n'.join(f'| {work.beta} | {work.seed} | `{greedy(work)[0]}` |' for work in outcomes),
        reading=READING
    )
    with open(os.path.join('docs', 'results', 'reward_hacking.md'), 'w') as f:
        f.write(text)
    click.echo(text)


if __name__ == '__main__':
    main()
