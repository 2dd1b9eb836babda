"""
SmolLM2-135M-Instruct trained by one process, by two that each have the whole model, and by two that divide it
(``policy.shard``): memory and time of each, and how far their weights are apart. Prints a table for
docs/results/by_hand.md.
"""
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Dict, List, NamedTuple

import click
import psutil  # comes with accelerate, of the extra gguf
import torch
from safetensors.torch import load_file
from tabulate import tabulate

import ding_grpo  # noqa: F401  so that DI-engine's import is quiet
from benchmarks.shared.hardware import machine
from benchmarks.shared.paths import ROOT
from ding_common import read_json_lines

CONFIG = '''
import runpy
from ding_grpo.instruments import watch
watch.EACH_BEFORE, watch.EVERY = 0, 10 ** 6  # no close looks, which take time
loaded = runpy.run_path({path!r})
main_config, create_config = loaded['main_config'], loaded['create_config']
main_config.exp_name = 'run'
main_config.env.update(stop_value=1e9, collector_env_num=128)
main_config.policy.update(group_size=8, multi_gpu={processes} > 1, shard={shard})
main_config.policy.model.autocast = None
main_config.policy.learn.update(batch_groups=16, drop_equal_groups=False)
main_config.policy.collect.update(groups=16, problem_order='epoch')
main_config.policy.eval.evaluator.eval_freq = 10 ** 6
'''


class Way(NamedTuple):
    """
    Overview:
        Number of processes, threads of each, and whether they divide the model.
    """
    processes: int
    threads: int
    shard: bool


WAYS = (Way(1, 2, False), Way(2, 1, False), Way(2, 1, True))


class Watch(threading.Thread):
    """
    Overview:
        Watches the anonymous memory of the processes of a run, which leaves out mapped files.
    Property:
        ``most``: by process, the largest in GiB from the end of the first update to that of the last
    """

    def __init__(self, run: subprocess.Popen, metrics: str, updates: int) -> None:
        super().__init__()
        self._run, self._metrics, self._updates, self.most = run, metrics, updates, {}

    def run(self) -> None:
        while self._run.poll() is None:
            if 0 < self._done() < self._updates:
                root = psutil.Process(self._run.pid)
                for process in (root, *root.children(recursive=True)):
                    self._look(process)
            time.sleep(0.02)

    def _done(self) -> int:
        """The number of updates that were made."""
        if not os.path.exists(self._metrics):
            return 0
        with open(self._metrics) as f:
            return sum(1 for _ in f)

    def _look(self, process: psutil.Process) -> None:
        try:
            if 'torch.distributed.run' in process.cmdline() or 'ding_grpo' not in process.cmdline():
                return
            with open(f'/proc/{process.pid}/status') as f:
                found = next((int(line.split()[1]) / 2 ** 20 for line in f if line.startswith('RssAnon')), 0.)
        except (psutil.Error, FileNotFoundError, ProcessLookupError):  # it has ended
            return
        self.most[process.pid] = max(found, self.most.get(process.pid, 0.))


def measure(way: Way, updates: int, returned: bool) -> Dict[str, Any]:
    """Memory, seconds of updates, rewards and final weights of a run; ``returned`` as in ``main``."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, 'c.py'), 'w') as f:
            path = os.path.join(ROOT, 'config', 'smollm2_grpo_config.py')
            f.write(CONFIG.format(path=path, **way._asdict()))
        torchrun = ['-m', 'torch.distributed.run', '--nproc_per_node', str(way.processes)] * (way.processes > 1)
        command = [sys.executable, *torchrun, '-m', 'ding_grpo', '-m', 'serial_onpolicy', '-c', 'c.py', '-s', '0']
        env = dict(os.environ, OMP_NUM_THREADS=str(way.threads), PYTHONPATH=ROOT)
        if returned:
            env['MALLOC_MMAP_THRESHOLD_'] = '131072'
        metrics = os.path.join(folder, 'run', 'log', 'learner', 'metrics.jsonl')
        run = subprocess.Popen(command + ['--train-iter', str(updates)], cwd=folder, env=env, stdout=subprocess.DEVNULL)
        watch = Watch(run, metrics, updates)
        watch.start()
        watch.join()  # until the run ends
        if run.returncode != 0:
            raise click.ClickException(f'{way} failed')
        records = read_json_lines(metrics)
        weights = load_file(os.path.join(folder, 'run', 'model', 'last', 'model.safetensors'))
    seconds = [b['seconds'] - a['seconds'] for a, b in zip(records, records[1:])]
    return dict(memory=max(watch.most.values()), seconds=seconds, weights=weights, records=records)


def distance(a: Dict[str, torch.Tensor], b: Dict[str, torch.Tensor]) -> float:
    """The largest distance of two weights, relative to their size."""
    return max(((a[name] - b[name]).norm() / a[name].norm()).item() for name in a)


@click.command()
@click.option('--updates', default=8, show_default=True)
@click.option('--returned', is_flag=True, help='glibc returns all memory that is freed, which takes time.')
def main(updates: int, returned: bool) -> None:
    """Train in each way, and print a table."""
    rows: List[List[str]] = []
    first = None
    for way in WAYS:
        found = measure(way, updates, returned)
        first = first or found
        seconds = found['seconds']
        rewards = [
            statistics.mean(r['reward_mean'] for r in part) for part in (found['records'][:2], found['records'][-2:])
        ]
        rows.append(
            [
                way.processes, 'yes' if way.shard else 'no', f"{found['memory']:.2f}",
                f'{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})',
                ' to '.join(f'{reward:.2f}'
                            for reward in rewards), f"{distance(first['weights'], found['weights']):.1e}"
            ]
        )
        click.echo(f'{way}: done', err=True)
    head = ['processes', 'divided', 'memory of a process, GiB', 'an update, s', 'reward', 'distance of weights']
    click.echo(f'{machine()}, {updates} updates of 16 problems x 8 rows, float32\n')
    click.echo(tabulate(rows, head, tablefmt='pipe', disable_numparse=True))


if __name__ == '__main__':
    main()
