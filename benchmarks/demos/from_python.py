"""
The first program of docs/get_started/first_run.md, "From Python", on several seeds: what a pretrained model learns from
a reward of one line. Writes benchmarks/results/from_python.json and docs/results/from_python.md.
"""
import json
import os
import re
import shutil
import subprocess
import sys
from typing import Any, Dict, List

import click

import ding_grpo  # noqa: F401  first, so that DI-engine's import is quiet
from benchmarks.shared.hardware import machine
from benchmarks.shared.paths import RECORDS, ROOT
from ding_common import read_json_lines
from ding_grpo.compare.table import markdown

SOURCE, PAGE = os.path.join('docs', 'get_started', 'first_run.md'), os.path.join('docs', 'results', 'from_python.md')
RECORD = os.path.join(RECORDS, 'from_python.json')
OUT = os.path.join('runs', 'from_python')
TEXT = '''# Eight lines of Python

`make bench NAME=from_python`: the program below, of [First run](../get_started/first_run.md#from-python), on seeds
{seeds}. The 210 sums are unordered: no held-out sum is trained with its terms exchanged. {number} of them are held out.
Accuracy is that of the greedy policy. Seconds are those of training, without the start and evaluations. {machine}.

```python
{code}
```

{rows}

The 95 % interval of one accuracy is up to {interval} points to each side.
'''


def program() -> str:
    with open(SOURCE, encoding='utf-8') as f:
        return re.search(r'```python\n(import re\nfrom ding_grpo import GRPO\n.*?)\n```', f.read(), re.DOTALL)[1]


def measure(seed: int) -> Dict[str, Any]:
    """A run of the program in a process of its own."""
    folder = os.path.join(OUT, f'seed {seed}')
    shutil.rmtree(folder, ignore_errors=True)
    changed = program().replace('data=rows,', f'data=rows, seed={seed}, exp_name={folder!r},')
    changed = changed.replace("run.save('my_model')", f'run.save({os.path.join(folder, "saved")!r})')
    timed = f"import time\nbegun = time.monotonic()\n{changed}\nprint('whole', time.monotonic() - begun)"
    process = subprocess.Popen([sys.executable, '-c', timed], stdout=subprocess.PIPE, text=True)
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise click.ClickException(f'seed {seed} failed')
    found = read_json_lines(os.path.join(folder, 'log', 'evaluator', 'evaluations.jsonl'))
    shutil.rmtree(os.path.join(folder, 'ckpt'))
    return dict(
        seed=seed,
        before=found[0]['eval_episode_return'],
        after=found[-1]['eval_episode_return'],
        updates=found[-1]['train_iter'],
        problems=len(found[-1]['completions']),
        seconds=found[-1]['seconds'],
        whole=float(re.findall(r'^whole (.*)$', out, re.MULTILINE)[-1]),
        gibibytes=usage.ru_maxrss / 2 ** 20,
        machine=machine(),
    )


def page(runs: List[Dict[str, Any]]) -> str:
    number = runs[0]['problems']
    head = [
        'seed', 'held-out accuracy before, %', f"after {runs[0]['updates']} updates, %", 'seconds of training',
        'of the whole program', 'peak memory, GiB'
    ]
    rows = [
        [
            r['seed'], f"{100 * r['before']:.1f}", f"{100 * r['after']:.1f}", f"{r['seconds']:.0f}",
            f"{r['whole']:.0f}", f"{r['gibibytes']:.1f}"
        ] for r in runs
    ]
    return TEXT.format(
        seeds=', '.join(str(r['seed']) for r in runs),
        number=number,
        machine='; '.join(dict.fromkeys(r['machine'] for r in runs)),
        code=program(),
        rows=markdown([head, *rows]),
        interval=f'{98 * number ** -0.5:.0f}',
    )


@click.command()
@click.option('--seeds', default='0,1,2', show_default=True, help='Comma-separated.')
def main(seeds: str) -> None:
    """Run the program on each seed, one after the other."""
    os.chdir(ROOT)
    runs = []
    for seed in map(int, seeds.split(',')):
        runs.append(measure(seed))
        click.echo(f"seed {seed}: {runs[-1]['before']:.1%} before, {runs[-1]['after']:.1%} after")
        with open(RECORD, 'w') as f:  # after each, so that none is lost
            json.dump(runs, f, indent=1)
            f.write('\n')
        with open(PAGE, 'w', encoding='utf-8') as f:
            f.write(page(runs))


if __name__ == '__main__':
    main()
