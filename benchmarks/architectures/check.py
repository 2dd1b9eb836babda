"""
Tiny random models of the architectures of ``transformers``, in each type and at two scales of their weights: how each
is read, and how far its log-probabilities are from those of plain ``transformers``. Then two updates of a run with
each. Exits with 1 if a line is wrong. With --write also docs/results/architectures.md.
"""
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import click
import torch
from ding.config import compile_config
from ding.envs import create_env_manager, get_vec_env_setting
from ding.policy import create_policy
from ding.utils import set_pkg_seed
from ding.worker import create_serial_collector

from benchmarks.architectures.configs import NAMES, config_of, model_type
from benchmarks.architectures.page import Line, Run, page, summary
from benchmarks.architectures.readings import SCALES, TYPES, last_line, measure, words
from benchmarks.shared.runs import ROOT, load_config
from ding_common import ConfigError

GROUP, GROUPS, UPDATES = 4, 2, 2
PATIENCE = 600  # seconds for one architecture
SCREEN = 'screen.txt'


class Order(NamedTuple):
    """
    Overview:
        What a process does with an architecture.
    """
    name: str
    types: Tuple[str, ...]
    scales: Tuple[float, ...]
    runs: bool
    device: str


def examine(order: Order) -> Line:
    """
    Overview:
        One line of the table, in this process.
    """
    begin = time.perf_counter()
    results = {
        (dtype, scale): measure(order.name, dtype, scale, order.device)
        for dtype in order.types for scale in order.scales
    }
    run = None
    if order.runs:
        heads = [result.head for (dtype, _), result in results.items() if dtype == 'float32']
        run = learn(order.name, 'linear_log_prob' if heads[:1] == [None] else 'efficient_method', order.device)
    return Line(order.name, results, run, time.perf_counter() - begin)


def learn(name: str, log_prob_fn: str, device: str = 'cpu') -> Run:
    """
    Overview:
        Two updates of think_answer in float32, of the parts that DI-engine's pipeline is made of. Logs are
        written below the current folder.
    Arguments:
        - name (:obj:`str`): An architecture of ``architecture_configs``.
        - log_prob_fn (:obj:`str`): As ``policy.learn`` takes it.
        - device (:obj:`str`): ``cpu`` or ``cuda``.
    """
    try:
        metrics = _learn(name, log_prob_fn, device)
    except ConfigError as error:
        return Run(refused=words(error))
    except Exception:  # an architecture may raise anything, and its line says so
        return Run(error=last_line())
    steps = [m['optimizer_steps'] for m in metrics]
    if steps != [1] * UPDATES:
        return Run(error=f'its updates made {steps} steps, not one each')
    return Run(gaps=tuple(m.get('sampler_gap_max') for m in metrics))


def _learn(name: str, log_prob_fn: str, device: str) -> List[Dict[str, float]]:
    main, create = load_config('think_answer_grpo')
    main.env.collector_env_num = GROUP * GROUPS
    main.policy.update(group_size=GROUP, cuda=device != 'cpu')
    main.policy.model.config = config_of(name)
    main.policy.collect.groups = GROUPS
    main.policy.learn.update(batch_groups=GROUPS, learning_rate=1e-3, log_prob_fn=log_prob_fn)
    cfg = compile_config(main, seed=0, auto=True, create_cfg=create, save_cfg=False)
    env, env_cfgs, _ = get_vec_env_setting(cfg.env)
    envs = create_env_manager(cfg.env.manager, [partial(env, cfg=c) for c in env_cfgs])
    set_pkg_seed(cfg.seed, use_cuda=cfg.policy.cuda)
    policy = create_policy(cfg.policy, enable_field=['learn', 'collect', 'eval'])
    collector = create_serial_collector(
        cfg.policy.collect.collector, env=envs, policy=policy.collect_mode, exp_name='run'
    )
    try:
        return [policy.learn_mode.forward(collector.collect(train_iter=update)) for update in range(UPDATES)]
    finally:
        collector.close()


def work(pipe: Connection, folder: str) -> None:
    """
    Overview:
        A process of its own: orders in, lines out; what it shows goes to a file.
    """
    os.chdir(folder)
    with open(SCREEN, 'w') as screen:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(screen.fileno(), stream.fileno())
    torch.set_num_threads(1)
    while True:
        pipe.send(examine(pipe.recv()))


class Worker:
    """
    Overview:
        A process that examines one architecture after the other, and another process if it dies of one.
    """

    def __init__(self) -> None:
        self._process: Any = None
        self.order: Optional[Order] = None  # at which it is

    def begin(self, order: Order) -> None:
        """Hand out an order; ``pipe`` is readable when its line is there or the process has ended."""
        if self._process is None:
            self._folder = tempfile.mkdtemp()
            context = multiprocessing.get_context('spawn')
            self.pipe, theirs = context.Pipe()
            self._process = context.Process(target=work, args=(theirs, self._folder), daemon=True)
            self._process.start()
            theirs.close()  # so that its end is noticed
        self.order, self.since = order, time.monotonic()
        self.pipe.send(order)

    def line(self) -> Line:
        """What came of the order."""
        order, self.order = self.order, None
        seconds = time.monotonic() - self.since
        try:
            if self.pipe.poll():
                return self.pipe.recv()
            error = f'no answer in {PATIENCE} seconds'
        except (EOFError, OSError):
            self._process.join()
            with open(os.path.join(self._folder, SCREEN)) as screen:
                error = f'the process ended with {self._process.exitcode}: {" ".join(screen.read().split())[-200:]}'
        self.stop()
        return Line(order.name, {}, Run(error=error), seconds)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
            shutil.rmtree(self._folder, ignore_errors=True)


def examine_all(orders: List[Order], jobs: int) -> List[Line]:
    """
    Overview:
        All lines, in the order of their names, by several processes; each is shown when it is there.
    """
    workers = [Worker() for _ in range(jobs)]
    waiting, lines = list(orders), {}
    try:
        while len(lines) < len(orders):
            for worker in workers:
                if worker.order is None and waiting:
                    worker.begin(waiting.pop(0))
            busy = [worker for worker in workers if worker.order is not None]
            ready = wait([worker.pipe for worker in busy], timeout=1)
            for worker in busy:
                if worker.pipe in ready or time.monotonic() > worker.since + PATIENCE:
                    line = worker.line()
                    lines[line.name] = line
                    click.echo(f'[{len(lines):3d}/{len(orders)}] {line}')
    finally:
        for worker in workers:
            worker.stop()
    return [lines[order.name] for order in orders]


def chosen(only: Tuple[str, ...]) -> List[str]:
    """Names that ``--only`` leaves: whole, or all of an architecture."""
    wanted = [name.strip() for names in only for name in names.split(',')]
    unknown = [w for w in wanted if not any(w in (name, model_type(name)) for name in NAMES)]
    if unknown:
        raise click.UsageError(f'--only {unknown[0]}: not in the table; there are {", ".join(NAMES)}.')
    return [name for name in NAMES if not wanted or name in wanted or model_type(name) in wanted]


@click.command()
@click.option('--only', multiple=True, help='Names of the table or architectures; may be given several times.')
@click.option('--types', default=','.join(TYPES), help='Types, with commas.')
@click.option('--scales', default=','.join(map(str, SCALES)), help='Factors of all matrices, with commas.')
@click.option('--runs/--no-runs', default=True, help='Whether each architecture also learns.')
@click.option('--jobs', default=2, type=click.IntRange(min=1), help='Processes, of one thread each.')
@click.option('--device', default='cpu', help='cpu or cuda.')
@click.option('--write', is_flag=True, help='Write docs/results/architectures.md.')
def main(only: Tuple[str, ...], types: str, scales: str, runs: bool, jobs: int, device: str,
         write: bool) -> Optional[int]:
    """Compare every architecture with plain transformers; end with 1 if one is wrong."""
    names, types = chosen(only), tuple(types.split(','))
    if not set(types) <= set(TYPES):
        raise click.UsageError(f'--types {",".join(types)}: must be among {", ".join(TYPES)}.')
    scales = tuple(float(scale) for scale in scales.split(','))
    whole = (names, types, scales, runs, device) == (NAMES, TYPES, SCALES, True, 'cpu')
    if write and not whole:
        raise click.UsageError('--write: the page has all architectures, types and scales, and their runs, on a cpu.')
    lines = examine_all([Order(name, types, scales, runs, device) for name in names], jobs)
    click.echo(summary(lines))
    if write:
        with open(os.path.join(ROOT, 'docs', 'results', 'architectures.md'), 'w') as f:
            f.write(page(lines))
    if any(line.wrong for line in lines):
        sys.exit(1)


if __name__ == '__main__':
    main()
