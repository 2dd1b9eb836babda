"""
Faults injected for real: a run that is killed again and again, and every other fault of
docs/guides/troubleshooting.md that a command line can show. ``python tools/faults.py`` writes the table of what
happened there, and ends with 1 if anything else did.
"""
import hashlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import click
import torch

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..'))
sys.path.insert(0, ROOT)
from ding_common import import_ding, read_json_lines  # noqa: E402

import_ding()
from ding.utils import deep_merge_dicts  # noqa: E402

from tests.same import same  # noqa: E402
from tests.shipped import load, write  # noqa: E402
from tools.fault_cases import DISKS, FAULTS, Fault, files_in  # noqa: E402

SMALL = dict(
    exp_name='run',
    env=dict(stop_value=1e9, collector_env_num=16),
    policy=dict(
        group_size=4,
        learn=dict(batch_groups=2, learner=dict(hook=dict(save_ckpt_after_iter=2))),
        collect=dict(groups=4, collector=dict(table_freq=1000)),
        eval=dict(evaluator=dict(eval_freq=25)),
    ),
)
START = 60.  # seconds within which a run must have begun


def write_config(folder: str, changes: Dict[str, Any], name: str = 'think_answer_grpo') -> None:
    """A shipped config made small, with changes."""
    main, create = load(name, **deep_merge_dicts(SMALL, changes))
    if 'pretrained' in main.policy.model:
        main.policy.model.pop('config')
    write(os.path.join(folder, 'c.py'), (main, create))


def begin(folder: str, updates: int, limit: Optional[int] = None) -> subprocess.Popen:
    """``python -m ding_grpo`` as a process; with a limit no file may grow beyond so many bytes."""

    def before() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [sys.executable, '-m', 'ding_grpo', '-m', 'serial_onpolicy', '-c', 'c.py', '-s', '0', '--train-iter']
    with open(os.path.join(folder, 'out.txt'), 'w') as out:
        return subprocess.Popen(
            command + [str(updates)],
            cwd=folder,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(os.environ, PYTHONPATH=ROOT, OMP_NUM_THREADS='1', PYTHONUNBUFFERED='1'),
            preexec_fn=before
        )


def output(folder: str) -> str:
    with open(os.path.join(folder, 'out.txt'), errors='replace') as f:
        return f.read()


def metrics_of(folder: str) -> List[Dict[str, Any]]:
    return read_json_lines(os.path.join(folder, 'run', 'log', 'learner', 'metrics.jsonl'))


def updates_of(folder: str) -> int:
    return len(metrics_of(folder))


def wait_for(condition: Callable[[], bool], process: subprocess.Popen, seconds: float = START) -> bool:
    """Whether it came about before the process ended or the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        if condition():
            return True
        time.sleep(0.001)
    return False


class Kill(NamedTuple):
    """When the process was killed, after which update, and whether a checkpoint was being written."""
    when: str
    update: int
    half_written: bool


def killed(folder: str, policy: Dict[str, Any], updates: int, kills: int, seed: int, name: str) -> List[Kill]:
    """
    Kill a run of a shipped config ``kills`` times, in turn at a random moment of training, while a checkpoint is being
    written, and at a random moment since its start; then let it come to its end.
    """
    chosen, done = random.Random(seed), []
    write_config(folder, dict(policy=deep_merge_dicts(policy, dict(learn=dict(resume_training=True)))), name)
    ckpt = os.path.join(folder, 'run', 'ckpt')
    while len(done) < kills:
        since = time.time()
        process, when = begin(folder, updates), ('training', 'writing', 'any')[len(done) % 3]
        so_far = updates_of(folder)
        if when == 'any':
            wait_for(lambda: False, process, chosen.uniform(0, 9))
        elif wait_for(lambda: 'learning; Ctrl-C' in output(folder), process):
            wait_for(lambda: False, process, chosen.uniform(0, 2))
            if when == 'writing':
                wait_for(lambda: _half_written(ckpt, since), process)
        if process.poll() is not None:
            raise click.ClickException(f'the run ended by itself after {len(done)} kills:\n{output(folder)[-2000:]}')
        process.send_signal(signal.SIGKILL)
        process.wait()
        done.append(Kill(when, updates_of(folder), _half_written(ckpt, since)))
        click.echo(f'kill {len(done)}, {when}: {so_far} updates before, {done[-1].update} then')
    process = begin(folder, updates)
    if process.wait() != 0:
        raise click.ClickException(f'the resumed run failed:\n{output(folder)[-2000:]}')
    return done


def _half_written(ckpt: str, since: float) -> bool:
    """Whether there is a part of a checkpoint that was begun after a time."""
    for name in files_in(ckpt):
        try:
            if name.endswith('.tmp') and os.path.getmtime(os.path.join(ckpt, name)) > since:
                return True
        except FileNotFoundError:  # it has just become whole
            pass
    return False


def inject(fault: Fault) -> Tuple[bool, str]:
    """
    Run with a fault. Returns whether what must come of it did, the exit code too, without a traceback and with all that
    was there before as it was; and the lines that tell it.
    """
    with tempfile.TemporaryDirectory() as folder:
        write_config(folder, fault.changes)
        if fault.first:
            write_config(folder, {})
            begin(folder, fault.first).wait()
            write_config(folder, fault.changes)
        fault.prepare(folder)
        before = _contents(folder)
        process = begin(folder, fault.updates, fault.limit)
        if fault.signal is not None:
            wait_for(lambda: updates_of(folder) >= 3, process)
            process.send_signal(fault.signal)
        code, out = process.wait(), output(folder)
        lines = [line for line in out.splitlines() if line.strip()]
        flat = ' '.join(lines)
        found = re.search(fault.happened, flat)
        kept = all(_contents(folder).get(path) == digest for path, digest in before.items()) or fault.code == 0
        whole = not os.path.exists(os.path.join(folder, 'executed')) and 'Traceback' not in out
        if fault.name.startswith('ratios'):
            steps = [record['optimizer_steps'] for record in metrics_of(folder)]
            whole = whole and max(steps) < 2 * 50
            lines.append(f'{min(steps):.0f} to {max(steps):.0f} of 100 steps of the optimizer an update')
        of_one_line = (line for line in reversed(lines) if re.search(fault.happened, line))
        shown = next(of_one_line, found[0] if found is not None else '')
        if fault.name.startswith('ratios'):
            shown = lines[-1]
        as_told = found is not None and code == fault.code and kept and whole
        if not as_told:
            shown = f'NOT AS TOLD: code {code}, kept {kept}: {flat[-1500:]}'
        if fault.prepare in DISKS:
            subprocess.run(['umount', os.path.join(folder, DISKS[fault.prepare])], check=True)
        return as_told, shown.replace(folder + os.sep, '').replace(ROOT + os.sep, '')


def _contents(folder: str) -> Dict[str, str]:
    """Digest of every file that no run may write over: inputs, configs of the user, checkpoints."""
    found = {}
    for where, _, names in os.walk(folder):
        if 'log' in os.path.relpath(where, folder).split(os.sep):
            continue
        for name in names:
            path = os.path.join(where, name)
            # by any run; it removes the result of its former end when it goes on
            written = name in ('out.txt', '.lock', 'result.pkl') or name.endswith('total_config.py')
            if not written and os.path.isfile(path):
                with open(path, 'rb') as f:
                    found[path] = hashlib.sha256(f.read()).hexdigest()
    return found


TEXT = """# Faults injected for real

This page is generated by `make test-faults`.

A run of think_answer had {updates} updates, with a checkpoint every second update.
It was killed by SIGKILL {kills} times, {writing} of them while a checkpoint was being written.
The kills came after the updates {at}.
Each time the run was resumed with `policy.learn.resume_training=True`.
Compared at its end with a run that was never killed: {verdict}.

The table lists every other fault, with its exit code and last line.

| fault | exit code | result |
|---|---|---|
{rows}
"""


def inject_each(faults: List[Fault]) -> List[str]:
    """The rows of the table. Raises if what came of a fault is not as told."""
    rows, failed = [], 0
    for fault in faults:
        if fault.prepare in DISKS and os.geteuid() != 0:
            click.echo(f'--  {fault.name}: only the superuser can make one')
            continue
        as_told, happened = inject(fault)
        failed += not as_told
        click.echo(f"{'ok ' if as_told else 'BAD'} {fault.name}: {happened}")
        shown = happened.replace('|', '\\|')
        rows.append(f'| {fault.name} | {fault.code} | `{shown[:300]}` |')
    if failed:
        raise click.ClickException(f'{failed} of {len(faults)} faults ended otherwise')
    return rows


@click.command()
@click.option('--kills', default=24, show_default=True)
@click.option('--updates', default=600, show_default=True)
@click.option('--seed', default=0, show_default=True)
@click.option('--config', default=None, help='Name of a shipped config: only its run is killed, and nothing written.')
@click.option('--policy', default='{}', help='With --config: keys of its section policy, in JSON.')
@click.option('--only', default='', help='Part of the names of faults: only these are injected, and nothing written.')
@click.option('--write/--no-write', default=False, help='Whether to write docs/results/faults.md.')
def main(kills: int, updates: int, seed: int, config: Optional[str], policy: str, only: str, write: bool) -> None:
    """Kill, damage, fill and feed; say what came of it."""
    if only:
        inject_each([fault for fault in FAULTS if only in fault.name])
        return
    name, changes = config or 'think_answer_grpo', json.loads(policy)
    with tempfile.TemporaryDirectory() as folder:
        whole, run = os.path.join(folder, 'whole'), os.path.join(folder, 'killed')
        for path in (whole, run):
            os.mkdir(path)
        write_config(whole, dict(policy=changes), name)
        if begin(whole, updates).wait() != 0:
            raise click.ClickException(output(whole)[-2000:])
        done = killed(run, changes, updates, kills, seed, name)
        a, b = (
            torch.load(os.path.join(path, 'run', 'ckpt', f'iteration_{updates}.pth.tar'), weights_only=True)
            for path in (whole, run)
        )
        same(a, b)
        if updates_of(run) != updates:
            raise click.ClickException(f'{updates_of(run)} lines of metrics, not {updates}')
    verdict = 'weights, optimizer, random numbers and counters are bit-identical'
    click.echo(f'{name}, {kills} kills, {sum(kill.half_written for kill in done)} while writing: {verdict}')
    if config is not None:
        return
    rows = inject_each(FAULTS)
    if write:
        told = TEXT.format(
            updates=updates,
            kills=kills,
            writing=sum(kill.half_written for kill in done),
            at=', '.join(str(kill.update) for kill in done),
            verdict=verdict,
            rows='\n'.join(rows)
        )
        with open(os.path.join(ROOT, 'docs', 'results', 'faults.md'), 'w') as f:
            f.write(told)


if __name__ == '__main__':
    main()
