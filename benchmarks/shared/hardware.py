"""What figures were measured on, and how fast it multiplies."""
import os
import re
import statistics
import subprocess
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch

from benchmarks.shared.paths import ROOT
from ding_common.versions import processor

PRODUCT = (2048, 256, 512)  # (rows, inputs, outputs) of a linear layer
PROGRAMS = (':(top)*.py', ':(top)Makefile')  # what changes figures: pages and records of them do not
SECONDS, PRODUCTS = 2, 5  # at least, of a rate: long enough that a short disturbance does not move the median


def machine(jobs: Optional[int] = None) -> str:
    """What the figures were measured on; ``jobs`` as in ``run_each``, if that was used."""
    threads = torch.get_num_threads() if jobs is None else 1
    parallel = '' if jobs in (None, 1) else f', {jobs} runs at a time'
    return (
        f'{processor()}, {threads} thread{"" if threads == 1 else "s"}{parallel}, '
        f'torch {torch.__version__.split("+")[0]}'
    )


def instructions() -> str:
    """The instruction set that torch uses: the processor's, or a lesser one that ``ATEN_CPU_CAPABILITY`` names."""
    return torch.backends.cpu.get_cpu_capability()


def measured_on() -> Dict[str, Any]:
    """
    Overview:
        What belongs to every figure of benchmarks/results/results.json.
    Returns:
        - found (:obj:`Dict[str, Any]`): ``processor``, ``instructions``, ``rates`` of bare products in GFLOP/s with \
            one and two threads by type, and ``commit``, with a + if a program was changed.
    """
    return dict(
        processor=processor(),
        instructions=instructions(),
        rates={str(t).split('.')[1]: [round(rate) for rate in _rates(t)]
               for t in (torch.float32, torch.bfloat16)},
        commit=commit(),
    )


def commit() -> str:
    """The commit of this checkout, with a + if a program was changed; 'unknown' in a copy without git."""
    if not os.path.exists(os.path.join(ROOT, '.git')):
        return 'unknown'
    changed = bool(_git('status', '--porcelain', '--untracked-files=no', '--', *PROGRAMS))
    return _git('rev-parse', '--short', 'HEAD') + ('+' if changed else '')


def _git(*args: str) -> str:
    return subprocess.run(['git', '-C', ROOT, *args], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def with_rates(found: Dict[str, Any]) -> str:
    """What ``measured_on`` has found, for pages about speed."""
    rows, inner, columns = PRODUCT
    rates = '; '.join(
        f"{name} {' and '.join(f'{rate:.0f}' for rate in of_type)}" for name, of_type in found['rates'].items()
    )
    return (
        f"{found['processor']}, {found['instructions']}; bare products of {rows} x {inner} by {inner} x {columns} with "
        f'one and two threads, in GFLOP/s: {rates}'
    )


def machines(entries: List[Dict[str, Any]]) -> str:
    """What entries of results.json were measured on: a line for each, with the medians of the rates."""
    found: Dict[Tuple[str, ...], List[Dict[str, Any]]] = {}
    for entry in entries:
        found.setdefault(tuple(entry[key] for key in ('processor', 'instructions', 'commit')), []).append(entry)
    lines = []
    for (*_, of_commit), alike in found.items():
        rates = {
            name: [statistics.median(entry['rates'][name][i] for entry in alike) for i in range(2)]
            for name in alike[0]['rates']
        }
        lines.append(f'- {with_rates(dict(alike[0], rates=rates))}; commit {of_commit}')
    return '\n'.join(lines)


def brand(name: str) -> str:
    """AMD, with its family, or Intel, of a processor's name, for columns of tables."""
    family = re.search(r'family (\d+)', name)
    return 'Intel' if 'Intel' in name else f'AMD {family[1]}' if 'AMD' in name and family else name


def processor_with_rates() -> str:
    """The processor, and the rates of bare matrix products, for pages about speed."""
    return with_rates(measured_on())


def _rates(dtype: torch.dtype) -> Iterator[float]:
    """GFLOP/s of bare products with one and with two threads, medians."""
    rows, inner, columns = PRODUCT
    a, b = torch.randn(rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            seconds: List[float] = []
            while sum(seconds) < SECONDS or len(seconds) < PRODUCTS:
                start = time.perf_counter()
                a @ b
                seconds.append(time.perf_counter() - start)
            yield 2 * rows * inner * columns / statistics.median(seconds) / 1e9
    finally:
        torch.set_num_threads(before)
