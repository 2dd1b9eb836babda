"""The runs of a comparison, each in a process of its own."""
import json
import os
import shutil
import subprocess
import sys
import time
from itertools import product
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import click

from ding_common import ConfigError, Rule, read_config_file, read_json_lines, require_dict
from ding_common.config.settings import sweep

DONE = 'result.pkl'  # DI-engine writes it last


class Outcome(NamedTuple):
    """What a finished run reached. Steps and seconds to the bar are infinite if it was not reached."""
    steps: float
    seconds: float
    best: float
    final: float

    @property
    def solved(self) -> bool:
        return self.steps < float('inf')


class Run(NamedTuple):
    """One config, with changes of its keys, and one seed."""
    name: str
    config: str
    settings: List[str]
    mode: str
    seed: int
    folder: str
    bar: float
    content: str  # of the changed config

    @property
    def done(self) -> bool:
        return os.path.exists(os.path.join(self.folder, DONE))

    def evaluations(self) -> List[Dict[str, Any]]:
        return read_json_lines(os.path.join(self.folder, 'log', 'evaluator', 'evaluations.jsonl'))

    def outcome(self) -> Outcome:
        records = self.evaluations()
        returns = [e['eval_episode_return'] for e in records]
        first = next((e for e in records if e['eval_episode_return'] >= self.bar), {})
        never = float('inf')
        return Outcome(first.get('envstep', never), first.get('seconds', never), max(returns), returns[-1])


def plan(configs: Sequence[str],
         seeds: List[int],
         out: str,
         bar: Optional[float] = None,
         settings: Sequence[str] = ()) -> List[Run]:
    """All runs, one per config file, combination of ``settings`` (``KEY=VALUE,VALUE``) and seed, in the order in which
    they start. A config with keys of a replay buffer runs in mode ``serial``; ``bar`` replaces ``env.stop_value``.
    Raises ``ConfigError`` if two configs have the same name, or a config is invalid."""
    runs: List[Run] = []
    names: Dict[str, str] = {}
    of_bar = [] if bar is None else [f'env.stop_value={bar!r}']
    for path, (chosen, label) in product(configs, list(sweep(settings))):
        changes = [*chosen, *of_bar]
        main, create = read_config_file(path, changes)
        name = f"{os.path.splitext(os.path.basename(path))[0].replace('_config', '')} {label}".strip()
        if name in names:
            raise ConfigError(f'{path}: has the name of {names[name]}, {name!r}; each config needs a different name.')
        names[name] = path
        other, stop_value = main.policy.get('other', {}), main.env.get('stop_value', float('inf'))
        require_dict(other, f'{path}: policy.other')
        if not Rule.number().or_inf().holds(stop_value):
            raise ConfigError(f'{path}: env.stop_value = {stop_value!r}: must be a number.')
        mode = 'serial' if other.get('replay_buffer') else 'serial_onpolicy'
        for seed in seeds:
            folder = os.path.join(out, f"{name.replace(os.sep, '_')} seed {seed}")
            runs.append(Run(name, path, changes, mode, seed, folder, stop_value, repr((main, create))))
    return sorted(runs, key=lambda r: seeds.index(r.seed))  # the first seed of all configs, then the second, ...


def bar_warning(runs: List[Run]) -> str:
    """A warning if the configs have different bars, otherwise an empty text."""
    bars = {r.name: r.bar for r in runs}
    if len(set(bars.values())) == 1:
        return ''
    listed = ', '.join(f'{name} {bar:g}' for name, bar in bars.items())
    return (
        f'Warning: the bars (env.stop_value) differ: {listed}. Steps and seconds to the bar, and final returns, are '
        'not comparable. Use --bar.'
    )


def _settings(run: Run, env_step: Optional[int], threads: int) -> Dict[str, Any]:
    """What determines a run, besides its seed; stored beside its folder."""
    return {'config': run.content, '--env-step': env_step, '--threads': threads}


def check_finished(run: Run, env_step: Optional[int], threads: int) -> None:
    path = f'{run.folder}.json'
    if not os.path.exists(path):
        return
    with open(path, encoding='utf-8') as f:
        before = json.load(f)
    changed = [name for name, value in _settings(run, env_step, threads).items() if before.get(name) != value]
    if changed:
        raise ConfigError(
            f'{run.folder}: this run finished with another {" and another ".join(changed)}. Delete the folder, or '
            'choose another --out.'
        )


def start(run: Run, env_step: Optional[int], threads: int) -> subprocess.Popen:
    """Start a run in a new process, after deleting the files of an unfinished one."""
    shutil.rmtree(run.folder, ignore_errors=True)
    os.makedirs(os.path.dirname(run.folder) or '.', exist_ok=True)
    with open(f'{run.folder}.json', 'w', encoding='utf-8') as f:
        json.dump(_settings(run, env_step, threads), f)
    command = [
        sys.executable, '-m', 'ding_grpo', '-m', run.mode, '-c', run.config, '-s',
        str(run.seed), '--exp-name', run.folder, *run.settings
    ]
    if env_step is not None:
        command += ['--env-step', str(env_step)]
    env = dict(os.environ, OMP_NUM_THREADS=str(threads))
    with open(f'{run.folder}.txt', 'w', encoding='utf-8') as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env)


def run_all(runs: List[Run], jobs: int, env_step: Optional[int], threads: int) -> List[Run]:
    """Execute all unfinished runs, ``jobs`` at a time. Returns those that failed; their output is in ``FOLDER.txt``."""
    waiting = [r for r in runs if not r.done]
    for run in runs:
        if run.done:
            check_finished(run, env_step, threads)
    if len(waiting) < len(runs):
        click.echo(f'{len(runs) - len(waiting)} of {len(runs)} runs are already done')
    running: List[Tuple[Run, subprocess.Popen, float]] = []
    failed: List[Run] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                run = waiting.pop(0)
                click.echo(f'started  {run.name} seed {run.seed}')
                running.append((run, start(run, env_step, threads), time.monotonic()))
            time.sleep(0.2)
            for entry in [e for e in running if e[1].poll() is not None]:
                running.remove(entry)
                run, process, since = entry
                bad = process.returncode != 0 or not run.done
                failed += [run] if bad else []
                last = run.evaluations()[-1:]
                text = f"return {last[0]['eval_episode_return']:.2f} after {last[0]['envstep']} steps" if last else ''
                what = 'FAILED  ' if bad else 'finished'
                click.echo(f'{what} {run.name} seed {run.seed}  {time.monotonic() - since:.0f} s  {text}')
    finally:
        for _, process, _ in running:
            process.terminate()
    return failed
