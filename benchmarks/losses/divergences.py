"""
Memory and time of the divergence from a teacher at a vocabulary of 49,152, each case in a process of its own:
``make bench NAME=divergences``. The memory is the peak during forward and backward above that before them,
without the gradients.
"""
import os
import subprocess
import sys
import time

import click
import torch

from benchmarks.shared.paths import ROOT, command
from ding_grpo.rl_utils import DIVERGENCES, LinearOutput, exact_kl, linear_divergence

TOKENS, VOCABULARY, STUDENT, TEACHER = 1024, 49152, 288, 576  # the hidden sizes of config/smollm2_distill_config.py


def _status(name: str) -> float:
    with open('/proc/self/status') as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) / 1024


def measure(case: str) -> str:
    """MiB and seconds of one case: one of ``DIVERGENCES``, or 'logits' for the reverse KL of whole logits."""

    def outputs(tokens: int) -> list:
        student = [torch.randn(1, tokens, STUDENT), torch.randn(VOCABULARY, STUDENT) * 0.1]
        return [
            LinearOutput(*(x.requires_grad_() for x in student)),
            LinearOutput(torch.randn(1, tokens, TEACHER),
                         torch.randn(VOCABULARY, TEACHER) * 0.1)
        ]

    def run(student: LinearOutput, teacher: LinearOutput) -> None:
        if case == 'logits':
            found = exact_kl(student.hidden @ student.weight.T, teacher.hidden @ teacher.weight.T)
        else:
            found, _ = linear_divergence(student, teacher, None, case)
        found.mean().backward()

    torch.manual_seed(0)
    run(*outputs(2))  # loads what the first call loads
    given = outputs(TOKENS)
    with open('/proc/self/clear_refs', 'w') as file:
        file.write('5')  # peak memory begins here
    before, start = _status('VmHWM'), time.perf_counter()
    run(*given)
    seconds = time.perf_counter() - start
    of_gradients = sum(x.grad.numel() * 4 for x in given[0][:2]) / 2 ** 20
    return f'| {case} | {_status("VmHWM") - before - of_gradients:.0f} | {seconds:.1f} |'


@click.command()
@click.option('--case', type=click.Choice([*DIVERGENCES, 'logits']), help='Only this one, in this process.')
def main(case: str) -> None:
    """Print a table of the divergences, and of the reverse KL from whole logits."""
    if case is not None:
        click.echo(measure(case))
        return
    click.echo(f'{TOKENS} tokens, vocabulary {VOCABULARY}, float32, {torch.get_num_threads()} thread(s)\n')
    click.echo('| divergence | MiB | seconds |\n|---|---|---|')
    env = dict(os.environ, MALLOC_MMAP_THRESHOLD_='262144', MALLOC_TRIM_THRESHOLD_='262144')  # give back what is freed
    for name in [*DIVERGENCES, 'logits']:
        words = command(sys.executable, 'losses.divergences', '--case', name)
        run = subprocess.run(words, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True)
        click.echo(run.stdout.strip())


if __name__ == '__main__':
    main()
