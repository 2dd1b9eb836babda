"""
A small language model learns some words backward from answers, and then more of them from reward alone; beside it more
of the former. Writes docs/demo_text.md and docs/demo_text.png.
"""
import os
import runpy
import shutil
import subprocess
import sys
import time
from typing import Any, Dict, List, Tuple

import ding_grpo  # noqa: F401  first, so that DI-engine's import is quiet

import click
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from runs import ROOT, machine
from transformers import AutoModelForCausalLM

from ding_common import read_json_lines
from ding_grpo.worker.pass_at_k import over_problems
from dizoo_llm.envs import TokenEnv
from dizoo_llm.sft import evaluate

OUT = os.path.join('runs', 'demo_text')
UPDATES = 100
WAYS = dict(
    grpo='GRPO, reward alone',
    more='supervised, the same demonstrations',
    fresh='supervised, fresh words with right answers',
)
CHANGED = '''
import runpy
names = runpy.run_path({config!r})
main_config, create_config = names['main_config'], names.get('create_config')
main_config.exp_name = {folder!r}
{changes}
'''

TEXT = '''# Reward lifts a language model: words spelled backward

`make demo-text` wrote this page. A Llama of 0.9 M parameters with one token a character, made here, first learns
from {examples} demonstrations of reasoning-gym's `spell_backward` (5 to 7 letters), of a careless teacher: two in
three lack the word's last letter (`benchmarks/careless_teacher.py`). Its held-out accuracy flattens at what such a
teacher can give. From there three ways, each for the same seconds of training:

- GRPO: {updates} updates of 32 words x 8 completions; the reward is 1 for a word spelled right, else 0; no answer
  is shown.
- More of the same demonstrations.
- Supervised training on fresh words with right answers.

Accuracy: greedy, to the letter, on {number} words whose text occurs in no training data (95 % interval of one
figure: up to {half:.1f} points to each side). {machine}, one thread a run. The rates of
warm start and GRPO fall to 0; further supervised training goes on at half the warm start's rate, constant, since it
ends by the clock.

| seed | warm start | GRPO | the same demonstrations | fresh right answers | seconds, warm | seconds, each way |
|---|---|---|---|---|---|---|
{lines}

![held-out accuracy](demo_text.png)

What it means: imitation ends at the teacher, and reward goes beyond, since what is right sometimes is made
likelier; nobody had to write a right answer, only to recognise one. Where right answers are to be had for the
asking, showing them is as good or better: a score says whether a guess was right, an answer says what is right.

Held-out words before and after GRPO (seed {seed}):

| word | before | after |
|---|---|---|
{samples}

The accuracy of GRPO is that of its `model/last` folder, loaded with plain `transformers` and answering with
`generate`.
'''


def folder(way: str, seed: int) -> str:
    return os.path.join(OUT, f'{way} seed {seed}')


def warm_model(seed: int) -> str:
    return os.path.join(folder('warm', seed), 'model')


def command(way: str, seed: int) -> List[str]:
    """
    Overview:
        Write the config of a run, and give the command that runs it.
    Arguments:
        - way (:obj:`str`): ``warm`` or one of ``WAYS``.
        - seed (:obj:`int`): Its seed.
    """
    kind = 'grpo' if way == 'grpo' else 'sft'
    changes = ''
    if way == 'grpo':
        changes = f"main_config.policy.model.pretrained = main_config.env.tokenizer.pretrained = {warm_model(seed)!r}"
    elif way != 'warm':
        metrics = read_json_lines(os.path.join(folder('grpo', seed), 'log', 'learner', 'metrics.jsonl'))
        changes = '\n'.join(
            [
                f"main_config.model = dict(pretrained={warm_model(seed)!r})",
                f"main_config.env.tokenizer = dict(pretrained={warm_model(seed)!r})",
                f"main_config.train.update(max_steps=10 ** 6, max_seconds={seconds_of(metrics)[-1]!r})",
                "main_config.train.update(learning_rate=5e-4, lr_scheduler='constant_with_warmup')",
                'main_config.train.update(first_example=main_config.train.examples, examples=10 ** 6, answers=None)'
                if way == 'fresh' else '',
            ]
        )
    path = os.path.join(OUT, f'{way}_{seed}_config.py')
    source = os.path.join(ROOT, 'config', f'spell_backward_{kind}_config.py')
    with open(path, 'w') as f:
        f.write(CHANGED.format(config=source, folder=folder(way, seed), changes=changes))
    if way == 'grpo':
        more = ['-m', 'ding_grpo', '-m', 'serial_onpolicy', '--train-iter', str(UPDATES)]
    else:
        more = ['-m', 'dizoo_llm.sft']
    return [sys.executable, *more, '-c', path, '-s', str(seed)]


def seconds_of(metrics: List[Dict[str, Any]]) -> List[float]:
    """Seconds of training, without those of evaluations, after each update."""
    parts = ('seconds_sampling', 'seconds_scoring', 'seconds_updating')
    return np.cumsum([sum(m[part] for part in parts) for m in metrics]).tolist()


def run_all(seeds: List[int], jobs: int) -> None:
    """Every run when what it needs is done, ``jobs`` at a time."""
    needs = {(way, seed): [('warm', seed)] if way == 'grpo' else [('grpo', seed)] for seed in seeds for way in WAYS}
    needs.update({('warm', seed): [] for seed in seeds})
    waiting, running, done = sorted(needs, key=lambda job: (len(needs[job]), job[1])), {}, set()
    env = dict(os.environ, OMP_NUM_THREADS='1')
    while waiting or running:
        for job in [job for job in waiting if done.issuperset(needs[job])][:jobs - len(running)]:
            waiting.remove(job)
            click.echo(f'begun {job[0]} seed {job[1]}')
            with open(f'{folder(*job)}.txt', 'w') as log:
                process = subprocess.Popen(command(*job), stdout=log, stderr=subprocess.STDOUT, env=env)
            running[job] = (process, time.monotonic())
        time.sleep(0.2)
        for job, (process, since) in list(running.items()):
            if process.poll() is None:
                continue
            del running[job]
            if process.returncode != 0:
                raise click.ClickException(f'{job[0]} seed {job[1]} failed: {folder(*job)}.txt')
            done.add(job)
            value = curve(*job)[-1][1]
            click.echo(f'ended {job[0]} seed {job[1]}  {time.monotonic() - since:.0f} s  held-out accuracy {value:.3f}')


def curve(way: str, seed: int) -> List[Tuple[float, float]]:
    """(seconds of training, held-out accuracy) of each evaluation."""
    if way != 'grpo':
        records = read_json_lines(os.path.join(folder(way, seed), 'evaluations.jsonl'))
        return [(r['seconds'], r['eval_episode_return']) for r in records]
    log = os.path.join(folder(way, seed), 'log')
    seconds = [0.0] + seconds_of(read_json_lines(os.path.join(log, 'learner', 'metrics.jsonl')))
    records = read_json_lines(os.path.join(log, 'evaluator', 'evaluations.jsonl'))
    points = [(seconds[r['train_iter']], r['eval_episode_return']) for r in records]
    return points + [(seconds[-1], plain(seed))]


def plain(seed: int) -> float:
    """Held-out accuracy of the folder that GRPO left, by plain ``transformers``."""
    path = os.path.join(folder('grpo', seed), 'model', 'last')
    env = config('grpo').env
    keys = ('task', 'max_new_tokens', 'max_prompt_length')
    token_env = TokenEnv(evaluation=True, tokenizer=dict(pretrained=path), **{key: env[key] for key in keys})
    return evaluate(AutoModelForCausalLM.from_pretrained(path), token_env, env.n_evaluator_episode)


def config(kind: str) -> Any:
    return runpy.run_path(os.path.join(ROOT, 'config', f'spell_backward_{kind}_config.py'))['main_config']


def draw(seeds: List[int], path: str) -> None:
    """
    Overview:
        Held-out accuracy over seconds of training: the warm start, and what each way makes of it.
    """
    figure = Figure(figsize=(8, 4.2), layout='constrained')
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for seed in seeds:
        warm = curve('warm', seed)
        axes.plot(*zip(*warm), color='grey', lw=1.2, label='warm start, supervised' if seed == seeds[0] else None)
        for number, (way, label) in enumerate(WAYS.items()):
            points = [(warm[-1][0] + seconds, value) for seconds, value in curve(way, seed)]
            axes.plot(*zip(*points), color=f'C{number}', lw=1.5, label=label if seed == seeds[0] else None)
    axes.set(xlabel='seconds of training', ylabel='held-out words spelled right, greedily', ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(fontsize='small', loc='upper left')
    figure.savefig(path, dpi=120)


def report(seeds: List[int]) -> str:
    """
    Overview:
        The results as Markdown.
    """
    number = config('grpo').env.n_evaluator_episode
    lines = []
    for seed in seeds:
        last = {way: curve(way, seed)[-1] for way in ('warm', *WAYS)}
        values = ' | '.join(f'{100 * last[way][1]:.1f} %' for way in ('warm', *WAYS))
        lines.append(f"| {seed} | {values} | {last['warm'][0]:.0f} | {last['grpo'][0]:.0f} |")
    before, after = (of_grpo(seeds[0], which) for which in (0, -1))
    samples = [
        f"| `{b['prompt'].split()[-1]}` | `{b['completion']}` | `{a['completion']}` |"
        for b, a in list(zip(before, after))[:10]
    ]
    return TEXT.format(
        examples=config('sft').train.examples,
        updates=UPDATES,
        number=number,
        half=100 * (over_problems(np.array([0., 1.] * (number // 2))).high - 0.5),
        machine=machine(),
        lines='\n'.join(lines),
        samples='\n'.join(samples),
        seed=seeds[0],
    )


def of_grpo(seed: int, which: int) -> List[Dict[str, Any]]:
    """What it completed in an evaluation."""
    log = os.path.join(folder('grpo', seed), 'log', 'evaluator', 'evaluations.jsonl')
    return read_json_lines(log)[which]['completions']


@click.command()
@click.option('--seeds', default='0,1,2', show_default=True, help='Comma-separated.')
@click.option('--jobs', default=2, show_default=True, help='Runs at a time, of one thread each.')
def main(seeds: str, jobs: int) -> None:
    """Warm start, GRPO, and what else the same minutes give; write docs/demo_text.md and docs/demo_text.png."""
    os.chdir(ROOT)
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)
    numbers = [int(s) for s in seeds.split(',')]
    run_all(numbers, jobs)
    draw(numbers, os.path.join('docs', 'demo_text.png'))
    text = report(numbers)
    with open(os.path.join('docs', 'demo_text.md'), 'w') as f:
        f.write(text)
    click.echo(text)
    warm, grpo, more = ([curve(way, seed)[-1][1] for seed in numbers] for way in ('warm', 'grpo', 'more'))
    if not all(g - w >= 0.25 and g > m and w < 0.6 for w, g, m in zip(warm, grpo, more)):
        raise click.ClickException('GRPO did not lift every seed by 25 points, or not beyond more of the same training')


if __name__ == '__main__':
    main()
