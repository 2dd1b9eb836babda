"""
Whether a run's memory or its open files grow: 5,000 updates of think_answer with a tiny model and everything else as
shipped (TensorBoard, JSON lines, evaluation, checkpoints), in a process of its own. With --write also
docs/results/soak.md and docs/results/soak.png.
"""
import multiprocessing
import os
import sys
import tempfile
import time
from typing import Dict, List, NamedTuple

import click
import numpy as np
import ding_grpo  # noqa: F401  before DI-engine, whose pipelines it completes
from ding.entry import serial_pipeline_onpolicy
from ding.worker import LearnerHook, register_learner_hook

from benchmarks.shared.hardware import machine
from benchmarks.shared.runs import ROOT, load_config
from ding_common import append_json, read_json_lines
from ding_common.output.picture import finish, line_style, new_figure

EVERY = 25  # updates
MOST = 0.02  # growth of memory
GROUP, GROUPS = 4, 2
SAMPLES, SCREEN = 'samples.jsonl', 'screen.txt'  # in the run's folder


class SoakHook(LearnerHook):
    """
    Overview:
        Memory, number of open files and processor time of this process, every so many updates, as a line of JSON.
    """

    def __call__(self, engine: 'BaseLearner') -> None:  # noqa
        update = engine.last_iter.val
        if update % EVERY == 0:
            sample = dict(update=update, memory=memory(), files=open_files(), seconds=time.process_time())
            append_json(os.path.join(os.getcwd(), SAMPLES), sample)


def memory() -> float:
    """Resident, in MiB, without the pages of files, which the system takes back when others need memory."""
    with open('/proc/self/statm') as f:
        _, resident, shared, *_ = map(int, f.read().split())
    return (resident - shared) * os.sysconf('SC_PAGE_SIZE') / 2 ** 20


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
    main.policy.collect.groups = main.policy.learn.batch_groups = GROUPS
    hook = dict(name='soak', type='soak', position='after_iter', priority=200)
    main.policy.learn.learner = dict(hook=dict(soak=hook))
    serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=updates)


class Growth(NamedTuple):
    """
    Overview:
        From the second fifth of a run to its last: mean memory in MiB, the most open files, and processor milliseconds
        of an update.
    """
    memory: float
    last_memory: float
    files: int
    last_files: int
    time: float
    last_time: float
    updates: float  # from the middle of the one to that of the other

    @classmethod
    def of(cls, samples: List[Dict[str, float]]) -> 'Growth':
        fifth = len(samples) // 5
        second, last = samples[fifth:2 * fifth], samples[-fifth:]
        return cls(
            *(float(np.mean([s['memory'] for s in part])) for part in (second, last)),
            *(max(s['files'] for s in part) for part in (second, last)),
            *(
                1e3 * np.ptp([s['seconds'] for s in part]) / np.ptp([s['update'] for s in part])
                for part in (second, last)
            ),
            float(np.mean([s['update'] for s in last]) - np.mean([s['update'] for s in second])),
        )

    @property
    def share(self) -> float:
        """Growth of memory."""
        return self.last_memory / self.memory - 1

    @property
    def held(self) -> bool:
        return self.share <= MOST and self.last_files <= self.files

    def __str__(self) -> str:
        return (
            f'Memory {self.memory:.1f} MiB in the second fifth and {self.last_memory:.1f} MiB in the last '
            f'({self.share:+.2%}, {1024 * (self.last_memory - self.memory) / self.updates:+.2f} KiB per update; at '
            f'most {MOST:.0%} is allowed); open files {self.files} and {self.last_files}; an update takes '
            f'{self.time:.1f} and {self.last_time:.1f} ms of the processor'
        )


def draw(samples: List[Dict[str, float]], path: str) -> None:
    """
    Overview:
        The curves as a picture.
    """
    figure, panels = new_figure(2)
    updates = [s['update'] for s in samples]
    parts = (('memory', 'memory, MiB'), ('files', 'open files'))
    for axes, (name, label) in zip(panels, parts):
        axes.plot(updates, [s[name] for s in samples], lw=1.2, **line_style(0))
        axes.set(xlabel='update', ylabel=label, ylim=(0, 1.2 * max(s[name] for s in samples)))
        for begin in (0.2, 0.8):  # the fifths that are compared
            axes.axvspan(begin * updates[-1], (begin + 0.2) * updates[-1], alpha=0.1)
    finish(figure, path)


def report(growth: Growth, updates: int) -> str:
    """
    Overview:
        The results as Markdown.
    """
    return '\n'.join(
        [
            '# Memory of a long run',
            '',
            'Generated by `make bench NAME=soak`, which tests that neither memory nor open files grow.',
            f'The config is `config/think_answer_grpo_config.py` with a model of hidden size 32, {GROUPS} groups of '
            f'{GROUP} and `stop_value` out of reach, everything else as shipped.',
            f'{updates:,} updates ran in a separate process. Its resident memory, without the pages of files, and its '
            f'open files were read every {EVERY} updates. {machine()}.',
            '',
            f'{growth}.',
            '',
            '![memory and open files over updates](soak.png)',
            '',
        ]
    )


@click.command()
@click.option('--updates', default=5000, type=click.IntRange(min=5 * EVERY), help='Updates of the run.')
@click.option('--write', is_flag=True, help='Write docs/results/soak.md and docs/results/soak.png.')
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
        draw(samples, os.path.join(ROOT, 'docs', 'results', 'soak.png'))
        with open(os.path.join(ROOT, 'docs', 'results', 'soak.md'), 'w') as f:
            f.write(report(growth, updates))
    if not growth.held:
        raise click.ClickException('memory or open files grow')


if __name__ == '__main__':
    main()
