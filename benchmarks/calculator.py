"""
Products with a calculator: a warm start, GRPO, and the trained model without the tool. It trains ``calculator_sft`` and
``calculator_grpo`` on some seeds and prints a table of the held-out products: ``make calculator``.
"""
import os
import runpy
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict

import click

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..'))
sys.path.insert(0, ROOT)
from ding_common import import_ding, read_json_lines  # noqa: E402

import_ding()
from transformers import AutoModelForCausalLM  # noqa: E402

from dizoo_llm.envs import TokenEnv  # noqa: E402
from dizoo_llm.sft import evaluate  # noqa: E402

UPDATES = 40
ENV = ('max_turns', 'max_new_tokens', 'max_reply_tokens', 'max_prompt_length')
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


def train(seed: int, out: str) -> str:
    """
    Overview:
        Warm start and GRPO with one seed, each in a process.
    Returns:
        - row (:obj:`str`): A row of the table.
    """
    warm, run = os.path.join(out, f'sft seed {seed}'), os.path.join(out, f'grpo seed {seed}')
    os.makedirs(out, exist_ok=True)
    path = os.path.join(ROOT, 'config', 'calculator_grpo_config.py')
    config = os.path.join(out, f'seed{seed}_config.py')
    with open(config, 'w') as f:
        f.write(CONFIG.format(path=path, model=os.path.join(warm, 'model')))
    sft_config = os.path.join(ROOT, 'config', 'calculator_sft_config.py')
    commands = {
        warm: ['dizoo_llm.sft', '-c', sft_config],
        run: ['ding_grpo', '-m', 'serial_onpolicy', '-c', config, '--train-iter',
              str(UPDATES)],
    }
    for folder, command in commands.items():
        if os.path.isdir(os.path.join(folder, 'model')):
            continue  # made by an earlier call
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, '-m', *command, '-s', str(seed), '--exp-name', folder]
        subprocess.run(command, check=True, env=dict(os.environ, PYTHONPATH=ROOT))
    first, *_, last = read_json_lines(os.path.join(run, 'log', 'evaluator', 'evaluations.jsonl'))
    env = runpy.run_path(path)['main_config'].env
    alone = without_tool(os.path.join(run, 'model', 'last'), env, env.n_evaluator_episode)
    used = sum(any('<tool_call>' in turn['text'] for turn in e['turns']) for e in last['completions'])
    return (
        f"| {seed} | {first['eval_episode_return']:.3f} | {first['sampled_return']:.3f} | {last['train_iter']} | "
        f"{last['eval_episode_return']:.3f} | {last['sampled_return']:.3f} | {used / len(last['completions']):.3f} | "
        f"{alone:.3f} | {last['seconds']:.0f} |"
    )


@click.command()
@click.option('--seeds', default=5, show_default=True)
@click.option('--jobs', default=1, show_default=True, help='Seeds at a time.')
@click.option('--out', default='runs/calculator', show_default=True)
def main(seeds: int, jobs: int, out: str) -> None:
    """Train on some seeds; how often the tool is used, and how often the answer is right with it and without."""
    with ThreadPoolExecutor(jobs) as pool:
        rows = list(pool.map(lambda seed: train(seed, out), range(seeds)))
    click.echo(
        '| seed | right before, greedy | sampled | updates | right after, greedy | sampled | tool used | right without '
        'the tool | seconds |\n|---|---|---|---|---|---|---|---|---|'
    )
    click.echo('\n'.join(rows))


if __name__ == '__main__':
    main()
