"""The runs of the comparison, each in a process of its own; what came of them; and which setting a side gets."""
import contextlib
import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Dict, Iterator, List, NamedTuple, Set, Tuple

import click
from easydict import EasyDict

from benchmarks.comparison.tasks import EVERY, Task
from benchmarks.shared.paths import ROOT, command
from benchmarks.shared.runs import kept, load_config

OUT = os.path.join('runs', 'comparison')
WARM_STARTED = dict(spell_backward=os.path.join('runs', 'spell_backward_sft', 'model'))

_processes: Set[subprocess.Popen] = set()  # that are running
_loading = threading.Lock()  # of configs, one at a time: Python says that runpy is not thread-safe


class Work(NamedTuple):
    """One run: task, side, number of the try, seed."""
    task: str
    side: str
    attempt: int
    seed: int

    @property
    def name(self) -> str:
        return f'{self.task}_{self.side}_{self.attempt}_seed{self.seed}'

    @property
    def config(self) -> Tuple[EasyDict, EasyDict]:
        """The shipped config. The process of the run gets it as a pickle, because its file imports this project."""
        with _loading:
            return load_config(f'{EVERY[self.task].config or self.task}_{self.side}')

    @property
    def job(self) -> Dict[str, Any]:
        """What the process of the run reads."""
        task = EVERY[self.task]
        return dict(
            config=os.path.join(OUT, f'{self.name}.config'),
            keys=task.tries[self.side][self.attempt],
            seed=self.seed,
            bar=task.bar,
            budget=task.budget,
            interval=task.interval,
            episodes=task.episodes,
            folder=os.path.join(OUT, self.name),
            result=os.path.join(OUT, f'{self.name}.part'),
        )

    @property
    def program(self) -> str:
        """DI-engine's PPO runs without this project where it can."""
        plain = self.side == 'ppo' and not EVERY[self.task].plugin
        return 'comparison.ppo' if plain else 'comparison.plugin'

    @property
    def python(self) -> str:
        return sys.executable

    @property
    def settings(self) -> str:
        """All that determines the result: the job, the shipped config, and the weights that it starts from."""
        job = self.job
        of_job = {key: job[key] for key in ('keys', 'seed', 'bar', 'budget', 'interval', 'episodes')}
        return repr(_ordered((of_job, self.config, _weights(self.task))))


class Outcome(NamedTuple):
    """
    Overview:
        What a run reached: environment steps and seconds of training at the first evaluation that reaches the bar, \
        infinite without one, and the return of the last evaluation.
    """
    steps: float
    seconds: float
    final: float

    @property
    def solved(self) -> bool:
        return self.steps < float('inf')


def outcome(run: Dict[str, Any], bar: float) -> Outcome:
    """The outcome of a run of the record."""
    never = float('inf')
    first = next((e for e in run['evaluations'] if e[1] >= bar), (never, bar, never))
    return Outcome(first[0], first[2], run['evaluations'][-1][1])


def choose(tried: List[List[Outcome]], budget: int) -> int:
    """
    Overview:
        The rule of choice: most seeds solved, then fewest environment steps in the mean, where a seed that did not \
        reach the bar counts the whole budget; of equal tries the first.
    Arguments:
        - tried (:obj:`List[List[Outcome]]`): Of each try, the outcomes of its seeds.
        - budget (:obj:`int`): Environment steps of a run.
    Returns:
        - number (:obj:`int`): Index of the try.
    """

    def rank(number: int) -> Tuple[int, float]:
        found = tried[number]
        return -sum(o.solved for o in found), sum(min(o.steps, budget) for o in found) / len(found)

    return min(range(len(tried)), key=rank)


def warm_start(task: str) -> None:
    """Make the model that all sides of a task start from, unless it is there or the task starts without one."""
    if task in WARM_STARTED and not os.path.exists(os.path.join(ROOT, WARM_STARTED[task])):
        words = [sys.executable, '-m', 'dizoo_llm.sft', '-c', f'config/{task}_sft_config.py', '-s', '0']
        subprocess.run(words, cwd=ROOT, check=True)


def works_of(task: str, attempts: Dict[str, List[int]], seeds: Tuple[int, ...]) -> List[Work]:
    """The runs of these tries on these seeds, the first seed of all sides first."""
    return [Work(task, side, n, seed) for seed in seeds for side, numbers in attempts.items() for n in numbers]


def all_tries(task: Task) -> Dict[str, List[int]]:
    return {side: list(range(len(tries))) for side, tries in task.tries.items()}


def run(work: Work, about: Dict[str, str]) -> Dict[str, Any]:
    """
    Overview:
        The result of a run; a finished one with the same settings is not repeated.
    Arguments:
        - work (:obj:`Work`): The run.
        - about (:obj:`Dict[str, str]`): What is stored beside a new result: machine, commit, versions.
    Raises:
        - RuntimeError: If the process failed. Its output is in runs/comparison/NAME.txt.
    """

    def compute() -> Dict[str, Any]:
        begun = time.monotonic()
        return {**_start(work), **about, 'wall': round(time.monotonic() - begun, 1)}

    return kept(os.path.join(OUT, f'{work.name}.json'), work.settings, compute)


def _start(work: Work) -> Dict[str, Any]:
    job, log = work.job, os.path.join(OUT, f'{work.name}.txt')
    shutil.rmtree(job['folder'], ignore_errors=True)
    path, config = os.path.join(OUT, f'{work.name}.job'), pickle.dumps(work.config)
    with open(path, 'w') as f:
        json.dump(job, f)
    with open(job['config'], 'wb') as f:
        f.write(config)
    env = dict(os.environ, OMP_NUM_THREADS='1', GOMP_SPINCOUNT='10000')
    with open(log, 'w') as out:
        words = command(work.python, work.program, path)
        process = subprocess.Popen(words, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env=env)
    _processes.add(process)
    try:
        code = process.wait()
    finally:
        _processes.discard(process)
        shutil.rmtree(job['folder'], ignore_errors=True)  # logs and checkpoints
        os.remove(path)
        os.remove(job['config'])
    if code != 0:
        raise RuntimeError(log)
    with open(job['result']) as f:
        result = json.load(f)
    os.remove(job['result'])
    os.remove(log)
    return result


def run_all(works: List[Work], jobs: int, what: str, about: Dict[str, str]) -> Dict[Work, Dict[str, Any]]:
    """
    Overview:
        Make all runs, ``jobs`` at a time. A line on stderr reports each one, and the time that is left.
    Returns:
        - results (:obj:`Dict[Work, Dict[str, Any]]`): In the order of the works.
    Raises:
        - ClickException: If processes failed; the others have finished.
    """
    results: Dict[Work, Dict[str, Any]] = {}
    failed: List[str] = []
    stop = threading.Event()

    def one(work: Work) -> Dict[str, Any]:
        if stop.is_set():
            raise RuntimeError('stopped')
        return run(work, about)

    with ThreadPoolExecutor(jobs) as pool, _ending(stop):
        futures = {pool.submit(one, work): work for work in works}
        for future in as_completed(futures):
            work = futures[future]
            try:
                results[work] = future.result()
            except RuntimeError as error:
                failed.append(str(error))
                click.echo(f'{what}: {work.name} failed: {error}', err=True)
                continue
            click.echo(f'{what}: {_line(work, results[work])}; {_left(works, results, jobs)}', err=True)
    if failed:
        raise click.ClickException(f'failed: {", ".join(failed)}. The next call repeats them and keeps the others.')
    return {work: results[work] for work in works}


@contextlib.contextmanager
def _ending(stop: threading.Event) -> Iterator[None]:
    """Context of the runs: an interruption ends their processes, and no other begins."""
    try:
        yield
    except BaseException:
        stop.set()
        for process in list(_processes):
            process.terminate()
        raise


def _line(work: Work, result: Dict[str, Any]) -> str:
    found = outcome(result, EVERY[work.task].bar)
    steps = f'{found.steps:,} steps' if found.solved else f"never, {result['evaluations'][-1][0]:,} steps"
    return f"{work.name} {steps}, return {found.final:.2f}, {result['wall']:.0f} s"


def _left(works: List[Work], results: Dict[Work, Dict[str, Any]], jobs: int) -> str:
    """Number of finished runs, and the time that the others take if each takes the mean of its side."""
    walls = [result['wall'] for result in results.values()]
    mean = sum(walls) / len(walls)
    seconds = 0.0
    for work in set(works) - set(results):
        of_side = [result['wall'] for done, result in results.items() if done.side == work.side]
        seconds += sum(of_side) / len(of_side) if of_side else mean
    return f'{len(results)} of {len(works)} done, about {seconds / jobs / 60:.0f} min left'


def _ordered(value: Any) -> Any:
    """Dicts as sorted pairs, because the order of their keys determines nothing."""
    if isinstance(value, dict):
        return sorted((key, _ordered(x)) for key, x in value.items())
    return [_ordered(x) for x in value] if isinstance(value, (list, tuple)) else value


def _weights(task: str) -> str:
    """A digest of the weights that the runs of a task start from; empty if they start from random ones."""
    if task not in WARM_STARTED:
        return ''
    path = os.path.join(ROOT, WARM_STARTED[task], 'model.safetensors')
    with open(path, 'rb') as f:
        return hashlib.sha256(f.read()).hexdigest()
