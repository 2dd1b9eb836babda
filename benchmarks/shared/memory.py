"""Peak memory of a program and of a part of it, on Linux."""
import os
import subprocess
from typing import Any, Callable, List, Tuple

import click

from benchmarks.shared.paths import ROOT


def peak_growth(function: Callable[[], Any]) -> float:
    """By how many MiB the memory of this process is larger at most while a function runs than before it."""
    with open('/proc/self/clear_refs', 'w', encoding='utf-8') as file:
        file.write('5')  # the peak is from here
    before = _status('VmRSS')
    function()
    return _status('VmHWM') - before


def _status(key: str) -> float:
    with open('/proc/self/status', encoding='utf-8') as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(key))


def last_line(words: List[str]) -> str:
    """What a program printed last that measures its memory: it returns larger blocks at once."""
    env = dict(os.environ, MALLOC_MMAP_THRESHOLD_='262144', MALLOC_TRIM_THRESHOLD_='262144')
    done = subprocess.run(words, cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.splitlines()[-1]


def output_and_peak(name: str, words: List[str], **options: Any) -> Tuple[str, float]:
    """What a program prints, and its peak memory in GiB."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, **options)
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise click.ClickException(f'{name} failed')
    return out, usage.ru_maxrss / 2 ** 20
