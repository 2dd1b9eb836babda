"""
A small language model learns some words backward from answers, and then more of them from reward alone; beside it more
of the former. Writes docs/demo_text.md and docs/demo_text.png.
"""
import json
import os
import shutil
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Tuple

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
UPDATES = 200
WAYS = dict(
    grpo='GRPO, reward on unlabelled words',
    more='supervised, the same 300 words',
    fresh='supervised, fresh words with answers',
)
CHANGED = '''
import runpy
names = runpy.run_path({config!r})
main_config, create_config = names['main_config'], names.get('create_config')
main_config.exp_name = {folder!r}
{changes}
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
                'main_config.train.update(first_example=main_config.train.examples, examples=10 ** 6)'
                if way == 'fresh' else '',
            ]
        )
    path = os.path.join(OUT, f'{way}_{seed}_config.py')
    config = os.path.join(ROOT, 'config', f'spell_backward_{kind}_config.py')
    with open(path, 'w') as f:
        f.write(CHANGED.format(config=config, folder=folder(way, seed), changes=changes))
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


def plain(seed: int, which: str = 'last') -> float:
    """Held-out accuracy of the folder that GRPO left, by plain ``transformers``."""
    path = os.path.join(folder('grpo', seed), 'model', which)
    names = read_config('grpo', seed)
    env = dict(names.env, tokenizer=dict(pretrained=path))
    token_env = TokenEnv(
        evaluation=True,
        **{key: env[key]
           for key in ('task', 'tokenizer', 'max_new_tokens', 'max_prompt_length')}
    )
    return evaluate(AutoModelForCausalLM.from_pretrained(path), token_env, env['n_evaluator_episode'])
