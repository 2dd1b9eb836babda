"""
Whether a run's memory or its open files grow: 5,000 updates of think_answer with a tiny model and everything else as
shipped (TensorBoard, JSON lines, evaluation, checkpoints), in a process of its own. With --write also docs/soak.md and
docs/soak.png.
"""
import multiprocessing
import os
import sys
import tempfile
from typing import Dict, List, NamedTuple

import click
import numpy as np
from runs import ROOT, load_config, machine  # first, so that DI-engine's import is quiet
from ding.entry import serial_pipeline_onpolicy
from ding.worker import LearnerHook, register_learner_hook
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ding_common import append_json, read_json_lines

EVERY = 25  # updates
MOST = 0.02  # growth of memory
GROUP, GROUPS = 4, 2
SAMPLES, SCREEN = 'samples.jsonl', 'screen.txt'  # in the run's folder


class SoakHook(LearnerHook):
    """
    Overview:
        Resident memory and number of open files of this process, every so many updates, as a line of JSON.
    """

    def __call__(self, engine: 'BaseLearner') -> None:  # noqa
        update = engine.last_iter.val
        if update % EVERY == 0:
            append_json(os.path.join(os.getcwd(), SAMPLES), dict(update=update, memory=memory(), files=open_files()))


def memory() -> float:
    """Resident, in MiB."""
    with open('/proc/self/statm') as f:
        return int(f.read().split()[1]) * os.sysconf('SC_PAGE_SIZE') / 2 ** 20


def open_files() -> int:
    return len(os.listdir('/proc/self/fd'))


def learn(folder: str, updates: int) -> None:
    """
    Overview:
        The run, in the process that is watched; what it shows goes to a file.
    """
    os.chdir(folder)
    screen = open(SCREEN, 'w')
    for stream in (sys.stdout, sys.stderr):
        os.dup2(screen.fileno(), stream.fileno())
    register_learner_hook('soak', SoakHook)
    main, create = load_config('think_answer_grpo')
    main.exp_name = 'run'
    main.env.update(collector_env_num=GROUP * GROUPS, stop_value=2)  # a return is 1 at most: out of reach
    main.policy.group_size = GROUP
    main.policy.model.config.update(hidden_size=32, intermediate_size=64)
    main.policy.collect.n_sample = main.policy.learn.batch_size = GROUPS
    hook = dict(name='soak', type='soak', position='after_iter', priority=200)
    main.policy.learn.learner = dict(hook=dict(soak=hook))
    serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=updates)


class Growth(NamedTuple):
    """
    Overview:
        From the second fifth of a run to its last: mean memory in MiB, and the most open files.
    """
    memory: float
    last_memory: float
    files: int
    last_files: int
    updates: float  # from the middle of the one to that of the other

    @classmethod
    def of(cls, samples: List[Dict[str, float]]) -> 'Growth':
        fifth = len(samples) // 5
        second, last = samples[fifth:2 * fifth], samples[-fifth:]
        return cls(
            *(float(np.mean([s['memory'] for s in part])) for part in (second, last)),
            *(max(s['files'] for s in part) for part in (second, last)),
            float(np.mean([s['update'] for s in last]) - np.mean([s['update'] for s in second])),
        )

    @property
    def share(self) -> float:
        """Growth of memory."""
        return self.last_memory / self.memory - 1

    @property
    def held(self) -> bool:
        return abs(self.share) <= MOST and self.last_files <= self.files

    def __str__(self) -> str:
        return (
            f'Memory {self.memory:.1f} MiB in the second fifth and {self.last_memory:.1f} MiB in the last '
            f'({self.share:+.2%}, {1024 * (self.last_memory - self.memory) / self.updates:+.2f} KiB an update; at most '
            f'{MOST:.0%} is allowed); open files {self.files} and {self.last_files}'
        )


def draw(samples: List[Dict[str, float]], path: str) -> None:
    """
    Overview:
        The curves as a picture.
    """
    figure = Figure(figsize=(9, 3.4), layout='constrained')
    FigureCanvasAgg(figure)
    updates = [s['update'] for s in samples]
    parts = (('memory', 'resident memory, MiB'), ('files', 'open files'))
    for axes, (name, label) in zip(figure.subplots(1, 2), parts):
        axes.plot(updates, [s[name] for s in samples], lw=1)
        axes.set(xlabel='update', ylabel=label, ylim=(0, 1.2 * max(s[name] for s in samples)))
        for begin in (0.2, 0.8):  # the fifths that are compared
            axes.axvspan(begin * updates[-1], (begin + 0.2) * updates[-1], alpha=0.1)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def report(growth: Growth, updates: int) -> str:
    """
    Overview:
        The results as Markdown.
    """
    return '\n'.join(
        [
            '# Does a long run grow?',
            '',
            f'`make soak` wrote this page: `config/think_answer_grpo_config.py` with a model of hidden size 32, '
            f'{GROUPS} groups of {GROUP} and `stop_value` out of reach, everything else as shipped; {updates:,} '
            'updates in a process of its own, whose resident memory and open files were read every '
            f'{EVERY}. {machine()}.',
            '',
            f'{growth}.',
            '',
            '![memory and open files over updates](soak.png)',
            '',
        ]
    )


@click.command()
@click.option('--updates', default=5000, type=click.IntRange(min=5 * EVERY), help='Updates of the run.')
@click.option('--write', is_flag=True, help='Write docs/soak.md and docs/soak.png.')
def main(updates: int, write: bool) -> None:
    """Watch memory and open files of a long run; end with 1 if they grow."""
    with tempfile.TemporaryDirectory() as folder:
        process = multiprocessing.get_context('spawn').Process(target=learn, args=(folder, updates))
        process.start()
        process.join()
        if process.exitcode != 0:
            with open(os.path.join(folder, SCREEN)) as f:
                raise click.ClickException(f'the run ended with {process.exitcode}:\n{f.read()[-3000:]}')
        samples = read_json_lines(os.path.join(folder, SAMPLES))
    if len(samples) < updates // EVERY:
        raise click.ClickException(f'the run ended after {len(samples)} samples, before its {updates} updates')
    growth = Growth.of(samples)
    click.echo(f'{growth}.')
    if write:
        draw(samples, os.path.join(ROOT, 'docs', 'soak.png'))
        with open(os.path.join(ROOT, 'docs', 'soak.md'), 'w') as f:
            f.write(report(growth, updates))
    if not growth.held:
        raise click.ClickException('memory or open files grow')


if __name__ == '__main__':
    main()
