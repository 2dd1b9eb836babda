"""
One update by one process and by two that share it, on this machine: think_answer with a larger model and longer
completions. Prints a table.
"""
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Dict, List, Tuple

import click
from tabulate import tabulate

from benchmarks.shared.paths import ROOT
from ding_common import read_json_lines

CONFIG = '''
import runpy
loaded = runpy.run_path({path!r})
main_config, create_config = loaded['main_config'], loaded['create_config']
main_config.exp_name = 'run'
main_config.env.update(stop_value=1e9, max_new_tokens=32)
main_config.policy.multi_gpu = {processes} > 1
main_config.policy.model.config.update(hidden_size=512, intermediate_size=2048)
main_config.policy.learn.batch_groups = 8
main_config.policy.eval.evaluator.eval_freq = 10 ** 6
'''
WAYS = ((1, 1), (1, 2), (2, 1))  # processes, threads of each


def measure(processes: int, threads: int, updates: int) -> Tuple[List[float], Dict[str, float]]:
    """Seconds of each update but the first few, and the medians of its parts."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, 'c.py'), 'w') as f:
            path = os.path.join(ROOT, 'config', 'think_answer_grpo_config.py')
            f.write(CONFIG.format(path=path, processes=processes))
        torchrun = ['-m', 'torch.distributed.run', '--nproc_per_node', str(processes)] if processes > 1 else []
        command = [sys.executable, *torchrun, '-m', 'ding_grpo', '-m', 'serial_onpolicy', '-c', 'c.py', '-s', '0']
        env = dict(os.environ, OMP_NUM_THREADS=str(threads), PYTHONPATH=ROOT)
        subprocess.run(
            command + ['--train-iter', str(updates)], cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL
        )
        records = read_json_lines(os.path.join(folder, 'run', 'log', 'learner', 'metrics.jsonl'))[3:]
    seconds = [b['seconds'] - a['seconds'] for a, b in zip(records, records[1:])]
    parts = {n: statistics.median(r[f'seconds_{n}'] for r in records) for n in ('sampling', 'updating')}
    return seconds, parts


@click.command()
@click.option('--updates', default=12, show_default=True)
@click.option('--rounds', default=3, show_default=True, help='How often each way is taken, in turn.')
def main(updates: int, rounds: int) -> None:
    """Measure each way in turn, and print medians with the smallest and the largest update."""
    found: Dict[Tuple[int, int], List] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            found[way].append(measure(*way, updates))
    rows = []
    for (processes, threads), runs in found.items():
        seconds = [s for run, _ in runs for s in run]
        parts = [statistics.median(p[name] for _, p in runs) for name in ('sampling', 'updating')]
        spread = f'{statistics.median(seconds):.3f} ({min(seconds):.3f} to {max(seconds):.3f})'
        rows.append([processes, threads, spread, *(f'{part:.3f}' for part in parts)])
    head = ['processes', 'threads of each', 'an update, s', 'sampling', 'learning']
    click.echo(tabulate(rows, head, tablefmt='pipe', disable_numparse=True))


if __name__ == '__main__':
    main()
