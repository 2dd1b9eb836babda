"""
What shadow losses and the noise scale cost: their own processor time, summed over an update, beside that of the whole
update. Prints a table.
"""
import contextlib
import functools
import os
import statistics
import tempfile
import time
from typing import Any, Dict, List

import click
import torch
import ding_grpo  # noqa: F401  before DI-engine, whose pipelines it completes
from ding.entry import serial_pipeline_onpolicy

from benchmarks.beside_trl.protocol import read_work
from benchmarks.beside_trl.update import Work, make_work
from benchmarks.beside_trl.update_ours import configs
from benchmarks.shared.hardware import machine
from ding_grpo.collect.group_collector import GroupCollector
from ding_grpo.instruments.noise_scale import NoiseScale
from ding_grpo.instruments.shadow import Shadow
from ding_grpo.model import CausalLM
from ding_grpo.rl_utils import LOSS_PRESETS
from ding_grpo.run.report import MetricsHook

WORK = Work(prompt_tokens=256, tokens=32, group_size=8, vocabulary=32, rounds=0)
PARTS = {
    'advantages': (Shadow, 'compared'),
    'losses and gradients': (Shadow, 'step'),
    'noise scale': (NoiseScale, 'before'),
    'files': (MetricsHook, '__call__'),
}


class Clock:
    """
    Overview:
        Processor time of this thread in milliseconds, by part; one list entry for each update.
    """

    def __init__(self) -> None:
        self.updates: List[Dict[str, float]] = []
        self._now = dict.fromkeys(PARTS, 0.0)
        self._start = 0.0

    def measure(self, stack: contextlib.ExitStack, part: str, owner: Any, name: str) -> None:
        """Count what a method takes, until the stack is closed."""
        own = getattr(owner, name)

        @functools.wraps(own)
        def timed(*args, **kwargs):
            start = time.thread_time()
            try:
                return own(*args, **kwargs)
            finally:
                self._now[part] += 1e3 * (time.thread_time() - start)

        setattr(owner, name, timed)
        stack.callback(setattr, owner, name, own)

    def mark(self) -> None:
        """Called at the start of each collect: the update before it is done."""
        now = time.thread_time()
        if self._start > 0:
            self.updates.append(dict(self._now, whole=1e3 * (now - self._start)))
        self._now, self._start = dict.fromkeys(PARTS, 0.0), now


def measure(folder: str, updates: int, shadow: Any) -> List[Dict[str, float]]:
    """Milliseconds of each update but the first; without a shadow, those that the run takes without it."""
    work, clock, collect = read_work(folder), Clock(), GroupCollector.collect
    main, create = configs(folder, work)
    main.exp_name, main.env.stop_value = 'run', 1e9
    main.policy.learn.update(batch_groups=work['groups'], learning_rate=1e-5)
    main.policy.update(instruments=dict(shadow=shadow))
    main.policy.collect.collector = dict(table_freq=10 ** 6)
    main.policy.eval.evaluator.eval_freq = 10 ** 6
    limit = CausalLM.limit_vocabulary

    def words_alone(self, size):
        self.output_tokens = size - 3  # no special tokens, so that every completion has full length

    def marked(*args, **kwargs):
        clock.mark()
        return collect(*args, **kwargs)

    with contextlib.ExitStack() as stack:
        for owner, name, own, function in ((CausalLM, 'limit_vocabulary', limit, words_alone),
                                           (GroupCollector, 'collect', collect, marked)):
            setattr(owner, name, function)
            stack.callback(setattr, owner, name, own)
        for part, (owner, name) in PARTS.items():
            clock.measure(stack, part, owner, name)
        nothing = stack.enter_context(open(os.devnull, 'w'))
        stack.enter_context(contextlib.redirect_stdout(nothing))
        serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=updates + 2)
    return clock.updates[1:]


@click.command()
@click.option('--updates', default=10, show_default=True, help='Updates of each of the two runs.')
@click.option('--group-size', default=WORK.group_size, show_default=True)
@click.option('--prompt-tokens', default=WORK.prompt_tokens, show_default=True)
@click.option('--tokens', default=WORK.tokens, show_default=True, help='Of a completion.')
def main(updates: int, **sizes: int) -> None:
    """Measure updates with and without shadow losses, and print medians."""
    torch.set_num_threads(1)
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        make_work(WORK._replace(**sizes), folder)
        os.chdir(folder)  # DI-engine makes its folder below the current one
        without, beside = measure(folder, updates, []), measure(folder, updates, 'all')
        os.chdir(here)
    of = {part: statistics.median(u[part] for u in beside) for part in PARTS}
    of['files'] -= statistics.median(u['files'] for u in without)  # what the additional metrics take
    whole = statistics.median(u['whole'] for u in without)
    click.echo(f'{WORK._replace(**sizes)}, {len(LOSS_PRESETS)} presets, {updates} updates, {machine()}')
    click.echo('| part | processor time | share of an update |\n|---|---|---|')
    total = sum(value for part, value in of.items() if part != 'noise scale')
    rows = [*of.items(), ('shadow losses in all', total), ('an update without them', whole)]
    for part, value in rows:
        click.echo(f'| {part} | {value:.2f} ms | {value / whole:.2%} |')


if __name__ == '__main__':
    main()
