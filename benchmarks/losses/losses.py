"""
Time and memory of the log-probability functions beside their peers', all in one run on one machine. Writes
docs/results/loss_time.md. Runs in the virtual environment that ``make bench NAME=loss_time`` makes, which has the peers
in it. Linux only: memory is the process's peak as the kernel counts it.
"""
import gc
import importlib.util
import os
import platform
import statistics
import sys
import time
from importlib.metadata import version
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import click
import torch
from tabulate import tabulate
from torch import Tensor

from benchmarks.shared.hardware import processor_with_rates
from benchmarks.shared.memory import last_line, peak_growth
from benchmarks.shared.paths import ROOT, command
from benchmarks.shared.records import PATH, add, paired
from ding_grpo.rl_utils import efficient_method, grpo_data, grpo_error, linear_log_prob
from ding_grpo.rl_utils.log_probs.matrix_product import multiplies_bfloat16

MAIN = os.path.join(sys.prefix, 'ding-main', 'ding', 'rl_utils', 'log_prob_utils.py')
ROWS, TOKENS, HIDDEN, VOCABULARY = 8, 256, 256, 32000
LARGE_TOKENS, LARGE_HIDDEN, LARGE_VOCABULARY = 8192, 1024, 151936
LARGE_TYPE = torch.bfloat16 if multiplies_bfloat16('cpu') else torch.float32  # bfloat16 would take hours otherwise


class Case(NamedTuple):
    leaves: List[Tensor]  # what gets a gradient
    run: Callable[[], Tensor]  # forward; returns what is differentiated


def ding_main() -> Tuple[str, Callable]:
    """DI-engine main's own file if it could be installed, else its formula."""
    if os.path.isfile(MAIN):
        spec = importlib.util.spec_from_file_location('ding_main_log_prob', MAIN)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return 'DI-engine main, `efficient_method`', module.efficient_method

    def formula(logits: Tensor, index: Tensor) -> Tensor:
        total = torch.stack([torch.logsumexp(row, dim=-1) for row in logits])
        return logits.gather(-1, index.unsqueeze(-1)).squeeze(-1) - total

    return 'formula of DI-engine main (which could not be installed)', formula


def from_logits(method: Callable) -> Case:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, TOKENS, VOCABULARY, generator=generator, requires_grad=True)
    index = torch.randint(0, VOCABULARY, (ROWS, TOKENS), generator=generator)
    return Case([logits], lambda: method(logits, index).sum())


def from_hidden(method: Callable) -> Case:
    """The GRPO loss of one on-policy batch without KL, DAPO's reduction (Liger's default)."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, TOKENS, HIDDEN, generator=generator, requires_grad=True)
    weight = (torch.randn(VOCABULARY, HIDDEN, generator=generator) * 0.05).requires_grad_()
    index = torch.randint(0, VOCABULARY, (ROWS, TOKENS), generator=generator)
    adv = torch.randn(ROWS, generator=generator)
    mask = torch.ones(ROWS, TOKENS)
    return Case([hidden, weight], lambda: method(hidden, weight, index, mask, adv))


def ours_from_hidden(hidden: Tensor, weight: Tensor, index: Tensor, mask: Tensor, adv: Tensor) -> Tensor:
    logp = linear_log_prob(hidden, weight, index, mask)
    return grpo_error(grpo_data(logp, None, None, adv, mask), beta=0, reduction='token')[0]


def liger(compiled: bool) -> Callable:
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss
    loss = LigerFusedLinearGRPOLoss(beta=0.0, use_ref_model=False, compiled=compiled)
    return lambda *inputs: loss(*inputs)[0]


def large() -> Case:
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).mul_(0.03).to(LARGE_TYPE).requires_grad_()

    hidden, weight = randn(1, LARGE_TOKENS, LARGE_HIDDEN), randn(LARGE_VOCABULARY, LARGE_HIDDEN)
    index = torch.randint(0, LARGE_VOCABULARY, (1, LARGE_TOKENS), generator=generator)
    return Case([hidden, weight], lambda: linear_log_prob(hidden, weight, index).sum())


CASES: Dict[str, Callable[[], Case]] = {
    'logits, ours': lambda: from_logits(efficient_method),
    'logits, peer': lambda: from_logits(ding_main()[1]),
    'hidden, ours': lambda: from_hidden(ours_from_hidden),
    'hidden, Liger': lambda: from_hidden(liger(False)),
    'hidden, Liger compiled': lambda: from_hidden(liger(True)),
    'large, ours': large,
}


def step(case: Case) -> float:
    """Forward and backward; seconds."""
    for leaf in case.leaves:
        leaf.grad = None
    start = time.perf_counter()
    case.run().backward()
    return time.perf_counter() - start


def time_cases(names: List[str], rounds: int) -> Dict[str, List[float]]:
    """One after the other in each round, so that what else the machine does meets all alike."""
    cases = {name: CASES[name]() for name in names}
    losses = {name: case.run().item() for name, case in cases.items()}
    assert max(losses.values()) - min(losses.values()) < 1e-3 * max(map(abs, losses.values())), losses
    seconds: Dict[str, List[float]] = {name: [] for name in names}
    for number in range(rounds + 1):  # the first, in which things are compiled, does not count
        for name, case in cases.items():
            value = step(case)
            if number > 0:
                seconds[name].append(value)
        click.echo(f'  round {number} of {rounds}: ' + ', '.join(f'{n} {v[-1]:.3f} s' for n, v in seconds.items() if v))
    return seconds


def memory_above(name: str, threads: int) -> float:
    """Peak MiB above inputs and gradients, in a process of its own that gives freed memory back at once."""
    return float(last_line(command(sys.executable, 'losses.losses', '--threads', str(threads), '--memory', name)))


def measure_memory(name: str) -> float:
    case = CASES[name]()
    if name != 'large, ours':
        step(case)  # what is compiled or kept for good is not counted
    for leaf in case.leaves:
        leaf.grad = None
    gc.collect()
    grown = peak_growth(lambda: case.run().backward())
    return grown - sum(x.numel() * x.element_size() for x in case.leaves) / 2 ** 20


def table(names: Dict[str, str], seconds: Dict[str, List[float]], memory: Dict[str, float], ours: str) -> str:
    rows: List[List[Any]] = []
    for name, label in names.items():
        s = seconds[name]
        ratios = [a / b for a, b in zip(seconds[ours], s)]
        rows.append(
            [
                label,
                f'{statistics.median(s) * 1e3:.0f} ({min(s) * 1e3:.0f} to {max(s) * 1e3:.0f})',
                f'{memory[name]:.0f}',
                '' if name == ours else f'{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})',
                '' if name == ours else f'{memory[ours] / memory[name]:.2f}',
            ]
        )
    head = ['', 'ms', 'MiB', 'time, ours / theirs', 'memory, ours / theirs']
    return tabulate(rows, head, tablefmt='pipe', disable_numparse=True)


@click.command()
@click.option('--rounds', default=9, show_default=True, help='Measurements of each, after one to warm up.')
@click.option('--threads', default=1, show_default=True, help='Threads of torch.')
@click.option('--memory', default=None, hidden=True, type=click.Choice(list(CASES)))
@click.option('--write/--no-write', default=True, help='Whether to write docs/results/loss_time.md and results.json.')
def main(rounds: int, threads: int, memory: str, write: bool) -> None:
    torch.set_num_threads(threads)
    if memory is not None:
        click.echo(measure_memory(memory))
        return
    peer = ding_main()[0]
    groups = [
        (
            f'From logits, B={ROWS} S={TOKENS} V={VOCABULARY}, float32, forward and backward',
            {
                'logits, ours': '`efficient_method`',
                'logits, peer': peer
            },
        ),
        (
            f'From hidden states, H={HIDDEN}, the same B, S, V, float32, the GRPO loss, forward and backward',
            {
                'hidden, ours': '`linear_log_prob` and `grpo_error`',
                'hidden, Liger': 'Liger `LigerFusedLinearGRPOLoss`, not compiled',
                'hidden, Liger compiled': 'Liger, compiled',
            },
        ),
    ]
    parts, entries = [], []
    for title, names in groups:
        click.echo(title)
        seconds = time_cases(list(names), rounds)
        used = {name: memory_above(name, threads) for name in names}
        parts.append(f'## {title}\n\n{table(names, seconds, used, next(iter(names)))}\n')
        click.echo(parts[-1])
        ours, peers = next(iter(names)), list(names)[1:]
        best = min(peers, key=lambda name: statistics.median(seconds[name]))
        entries.append(
            dict(
                work='loss_from_logits' if ours.startswith('logits') else 'loss_from_hidden',
                **paired(seconds[ours], seconds[best]),
                peer_name=names[best],
                threads=threads,
                versions={name: version(name)
                          for name in ('torch', 'liger-kernel', 'ding-grpo')},
                memory_ours=used[ours] * 2 ** 20,
                memory_peer=used[best] * 2 ** 20,
            )
        )
    title = (
        f'Large: B=1 S={LARGE_TOKENS} V={LARGE_VOCABULARY} H={LARGE_HIDDEN}, {str(LARGE_TYPE).split(".")[1]}, '
        '`linear_log_prob`, forward and backward'
    )
    click.echo(title)
    above = memory_above('large, ours', threads)
    parts.append(f'## {title}\n\n{above:.0f} MiB above inputs, parameters and their gradients.\n')
    click.echo(parts[-1])
    if write:
        path = os.path.join(ROOT, 'docs', 'results', 'loss_time.md')
        with open(path, 'w', encoding='utf-8') as file:
            file.write(INTRODUCTION.format(rounds=rounds, machine=_machine(), threads=threads) + '\n'.join(parts))
        add(entries)
        click.echo(f'written: {os.path.relpath(path)}, {os.path.relpath(PATH)}')


INTRODUCTION = """# Time and memory of the losses

Generated by `make bench NAME=loss_time`. Values are medians of {rounds} rounds with the smallest and largest, all in
one run. Each round measures every candidate once, and ratios are computed within a round. Memory is the peak above the
inputs and their gradients. {machine}; torch threads: {threads}.

"""


def _machine() -> str:
    packages = ', '.join(f'{name} {version(name)}' for name in ('torch', 'liger-kernel'))
    return f'{processor_with_rates()}, {os.cpu_count()} cores; Python {platform.python_version()}, {packages}'


if __name__ == '__main__':
    main()
