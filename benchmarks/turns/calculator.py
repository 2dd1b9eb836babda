"""
Products with a calculator: a warm start, GRPO, and the trained model without the tool. It trains ``calculator_sft`` and
``calculator_grpo`` on some seeds and prints a table of the held-out products: ``make bench NAME=calculator``.
"""
import os
import runpy
import shutil
import subprocess
import sys
from functools import partial
from typing import Any, Dict

import click
from tabulate import tabulate
from transformers import AutoModelForCausalLM

from benchmarks.shared.hardware import machine
from benchmarks.shared.runs import ROOT, kept, load_config, run_each
from ding_common import read_json_lines
from dizoo_llm.envs import TokenEnv
from dizoo_llm.sft import evaluate

UPDATES = 40
ENV = ('max_turns', 'max_new_tokens', 'max_reply_tokens', 'max_prompt_length')
SFT, GRPO = (os.path.join(ROOT, 'config', f'calculator_{kind}_config.py') for kind in ('sft', 'grpo'))
CONFIG = '''
import runpy

found = runpy.run_path({path!r})
main_config, create_config = found['main_config'], found['create_config']
main_config.env.tokenizer.pretrained = main_config.policy.model.pretrained = {model!r}
main_config.env.stop_value = 1e9  # the greedy policy is right after the warm start; go on for the sampled one
main_config.policy.eval.evaluator.eval_freq = 20
'''


def calc(expression: str) -> str:
    """
    Compute nothing: the tool has been taken away.

    Args:
        expression: Any text.
    """
    raise RuntimeError('not available')


def without_tool(model: str, env: Dict[str, Any], problems: int) -> float:
    """Share of right greedy answers where every call is answered by an error."""
    task = dict(env['task'], functions=['calculator:calc'])
    options = {key: env[key] for key in ENV}
    held_out = TokenEnv(task, tokenizer=dict(pretrained=model), evaluation=True, **options)
    return evaluate(AutoModelForCausalLM.from_pretrained(model), held_out, problems)


def measure(out: str, seed: int) -> Dict[str, Any]:
    """The figures of one seed; a finished one with the same configs is not repeated."""
    os.makedirs(out, exist_ok=True)
    settings = repr((load_config('calculator_grpo'), sft_config(), seed, UPDATES))
    return kept(os.path.join(out, f'seed {seed}.json'), settings, lambda: train(seed, out))


def sft_config() -> Dict[str, Any]:
    return runpy.run_path(SFT)['main_config']


def train(seed: int, out: str) -> Dict[str, Any]:
    """
    Overview:
        Warm start and GRPO with one seed, each in a process.
    Returns:
        - figures (:obj:`Dict[str, Any]`): The columns of the table.
    """
    warm, run = os.path.join(out, f'sft seed {seed}'), os.path.join(out, f'grpo seed {seed}')
    config = os.path.join(out, f'seed{seed}_config.py')
    with open(config, 'w') as f:
        f.write(CONFIG.format(path=GRPO, model=os.path.join(warm, 'model')))
    commands = {
        warm: ['dizoo_llm.sft', '-c', SFT],
        run: ['ding_grpo', '-m', 'serial_onpolicy', '-c', config, f'--train-iter={UPDATES}'],
    }
    for folder, command in commands.items():
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, '-m', *command, '-s', str(seed), '--exp-name', folder]
        subprocess.run(command, check=True, env=dict(os.environ, PYTHONPATH=ROOT), stdout=subprocess.DEVNULL)
    first, *_, last = read_json_lines(os.path.join(run, 'log', 'evaluator', 'evaluations.jsonl'))
    env = load_config('calculator_grpo')[0].env
    used = sum(any('<tool_call>' in turn['text'] for turn in e['turns']) for e in last['completions'])
    return {
        'right before, greedy': first['eval_episode_return'],
        'sampled': first['sampled_return'],
        'right after, greedy': last['eval_episode_return'],
        'sampled after': last['sampled_return'],
        'tool used': used / len(last['completions']),
        'right without the tool': without_tool(os.path.join(run, 'model', 'last'), env, env.n_evaluator_episode),
        'seconds': last['seconds'],
    }


@click.command()
@click.option('--seeds', default=5, show_default=True)
@click.option('--jobs', default=1, show_default=True, help='Seeds at a time.')
@click.option('--out', default='runs/calculator', show_default=True)
def main(seeds: int, jobs: int, out: str) -> None:
    """Train on some seeds; how often the tool is used, and how often the answer is right with it and without."""
    os.chdir(ROOT)
    found = run_each(partial(measure, out), list(range(seeds)), jobs)
    click.echo(f'{UPDATES} updates. {machine(jobs)}.\n')
    rows = [dict(seed=seed, **figures) for seed, figures in found.items()]
    click.echo(tabulate(rows, headers='keys', tablefmt='github', floatfmt='.3f'))


if __name__ == '__main__':
    main()
