"""
How time and memory of sampling and learning grow with each size, with the exponent; how near learning is to bare matrix
products. No peer. With --write, docs/results/growth.md.
"""
import json
import os
import statistics
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import click
import numpy as np
import torch
from tabulate import tabulate

import ding_grpo  # noqa: F401  so that DI-engine's import is quiet
from benchmarks.shared.hardware import machines, measured_on
from benchmarks.shared.memory import last_line, peak_growth
from benchmarks.shared.paths import ROOT, command
from benchmarks.shared.rows import batch_of
from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.rl_utils import linear_log_prob
from ding_grpo.rl_utils.log_probs.matrix_product import onednn_product
from ding_grpo.rollout import Sampling, generate

CPU = torch.device('cpu')
BASE = dict(prompts=8, prompt=256, completion=32, group=8, vocabulary=32, hidden=256, layers=2)
VARIED = dict(
    prompts=(1, 4, 16, 64, 128),
    group=(1, 4, 16, 64, 128),
    prompt=(16, 64, 256, 1024, 2048, 4096, 8192),
    completion=(16, 64, 256, 1024, 2048, 4096),
    vocabulary=(32, 2048, 32768, 131072),
    hidden=(64, 128, 256, 512, 1024),
    layers=(1, 2, 4, 8, 16),
)
FEWER = dict(prompt=dict(prompts=1), completion=dict(prompts=1))  # where rows are long
LONG = 20  # seconds, after which a size is measured once
BUDGET: Union[int, str, None] = 'auto'  # ``learn.micro_batch_tokens``: 4096, or more where prompts are long


class Update:
    """
    Overview:
        The two large parts of an update of given sizes.
    """

    def __init__(
        self, prompts: int, prompt: int, completion: int, group: int, vocabulary: int, hidden: int, layers: int,
        **options: Any
    ):
        torch.manual_seed(0)
        self.group = group
        self.model = CausalLM(
            config=dict(
                model_type='llama',
                vocab_size=vocabulary,
                hidden_size=hidden,
                intermediate_size=4 * hidden,
                num_hidden_layers=layers,
                num_attention_heads=hidden // 64,
                max_position_embeddings=8192 + 4096,
            ),
            **options
        )
        self.prompts = [p for p in torch.randint(0, vocabulary, (prompts, prompt)) for _ in range(group)]
        self.rows = PromptBatch.of(self.prompts, CPU)
        self.completion = torch.randint(0, vocabulary, (prompts * group, completion))
        self.uniform = torch.rand(prompts * group, completion, dtype=torch.double)
        self.tokens = prompts * prompt + prompts * group * (completion - 1)  # read in learning
        self.seen = prompts * prompt * (prompt +
                                        1) / 2 + prompts * group * sum(prompt + t for t in range(1, completion))

    def sample(self) -> None:
        """Without an end of sequence."""
        generate(self.model, self.rows, self.completion.shape[1], [-1], Sampling(), self.uniform)

    def learn(self, budget: Union[int, str, None] = None) -> None:
        """Forward and backward of the log-probabilities; with a budget in parts of so many tokens."""
        for p in self.model.parameters():
            p.grad = None
        batch = batch_of(self.prompts, self.completion, torch.ones(self.completion.shape), self.group)
        for _, part in batch.parts(budget):
            hidden = self.model.completion_hidden(PromptBatch.of(part.prompts, CPU), part.action)
            logp, _ = linear_log_prob(
                hidden, index=part.action, return_entropy=True, **self.model.output_head()._asdict()
            )
            logp.sum().backward()

    def operations(self) -> float:
        """Floating-point operations of ``learn``: a multiplication and an addition each, forward and twice backward."""
        head = self.model.lm.lm_head
        below = sum(m.weight.numel() for m in self.model.lm.base_model.modules() if isinstance(m, torch.nn.Linear))
        width = self.model.lm.config.hidden_size * self.model.lm.config.num_hidden_layers
        return 6. * (self.tokens * below + self.completion.numel() * head.weight.numel() + 2 * self.seen * width)

    def products(self, multiply: Callable) -> List[Callable]:
        """The linear layers' products, forward and backward, and nothing else."""
        found = []
        for m in self.model.lm.base_model.modules():
            if isinstance(m, torch.nn.Linear):
                x, w = torch.randn(self.tokens, m.in_features), m.weight.detach()
                g = torch.randn(self.tokens, m.out_features)
                for a, b in ((x, w), (g, w.t()), (g.t(), x.t())):
                    found.append(lambda a=a, b=b: multiply(a, b))
        return found


def spread(values: List[float]) -> Tuple[float, float, float]:
    """Median, smallest and largest."""
    return statistics.median(values), min(values), max(values)


def seconds_of(functions: List[Callable], rounds: int) -> List[Tuple[float, float, float]]:
    """Median, smallest and largest time of the processor of each; the first round counts only if it is a long one."""
    found: List[List[float]] = []
    while len(found) <= rounds and not (found and sum(found[0]) > LONG):
        found.append([])
        for function in functions:
            start = time.process_time()
            function()
            found[-1].append(time.process_time() - start)
    return [spread(values) for values in zip(*(found[1:] or found))]


def rate(rounds: int) -> Dict[str, float]:
    """
    Overview:
        Operations a second of learning, and of bare products of the same shapes, by torch and by oneDNN; alternating.
    """
    update = Update(**BASE)
    bare = {'torch': update.products(lambda a, b: a @ b.t()), 'oneDNN': update.products(onednn_product)}
    layers = [m for m in update.model.lm.base_model.modules() if isinstance(m, torch.nn.Linear)]
    of_products = 6. * update.tokens * sum(m.weight.numel() for m in layers)
    seconds: Dict[str, List[float]] = {name: [] for name in ('learning', *bare)}
    for number in range(rounds + 1):
        for name in seconds:
            start = time.process_time()
            for function in [update.learn] if name == 'learning' else bare[name]:
                function()
            if number > 0:
                seconds[name].append(time.process_time() - start)
    rates = {
        name: (update.operations() if name == 'learning' else of_products) / statistics.median(s) / 1e9
        for name, s in seconds.items()
    }
    return rates


def memory(sizes: Dict[str, int], budget: Union[int, str, None] = BUDGET) -> List[float]:
    """Peak MiB of sampling and of learning above the model, in a process of its own."""
    words = command(sys.executable, 'costs.growth', '--memory', json.dumps([sizes, budget]))
    return json.loads(last_line(words))


def _peaks(sizes: Dict[str, int], budget: Union[int, str, None]) -> List[float]:
    update = Update(**sizes)
    update.model.shares_prompts  # its trial is not counted
    Update(**dict(sizes, prompts=1, group=1, prompt=16, completion=16)).learn(64)  # nor what is loaded once
    return [peak_growth(update.sample), peak_growth(lambda: update.learn(budget))]


def exponent(sizes: List[int], values: List[float]) -> float:
    """That of the power which fits the larger half best."""
    half = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[half:]), np.log(np.maximum(values[half:], 1e-3)), 1)[0])


def measure(name: str, rounds: int, rate_of_products: float) -> List[List[str]]:
    """The lines of the table for one size that varies."""
    lines, columns = [], []
    for value in VARIED[name]:
        sizes = {**BASE, **FEWER.get(name, {}), name: value}
        update = Update(**sizes)
        update.model.shares_prompts  # its trial is not counted
        seconds = seconds_of([update.sample, lambda: update.learn(BUDGET)], rounds)
        peaks = memory(sizes)
        share = update.operations() / seconds[1][0] / 1e9 / rate_of_products
        columns.append([seconds[0][0], seconds[1][0], *peaks])
        cells = [f'{middle * 1e3:,.0f} ({low * 1e3:,.0f} to {high * 1e3:,.0f})' for middle, low, high in seconds]
        lines.append([name, f'{value:,}', *cells, f'{share:.2f}', *(f'{peak:,.0f}' for peak in peaks)])
        click.echo('  '.join(lines[-1]))
    fitted = [f'**{exponent(list(VARIED[name]), column):.2f}**' for column in map(list, zip(*columns))]
    return [*lines, [name, 'exponent', *fitted[:2], '', *fitted[2:]]]


TEXT = """# Growth

Generated by `make bench NAME=growth`.

This project alone, a random Llama in float32, with one thread: sampling, and forward and backward of learning,
as by default: 4,096 tokens at a time, or more where prompts would be read too often (`learn.micro_batch_tokens`).

- One size varies; the others are: {base}. The length of prompts and of completions is varied with one prompt.
- The exponent is that of the power which fits the larger half of the sizes: 1 is linear.
- "Share" is the rate of learning beside that of the products of its linear layers alone, at the sizes above:
  {products:.0f} GFLOP/s.
- Times are those of the processor, medians of {rounds} rounds, with the smallest and the largest; what takes more than
  {long} s was measured once. MiB is the peak above the model, each in a process of its own.

{on}

{table}

{remarks}

## Comparison with plain matrix products

At the sizes above, all tokens at once, learning reaches {learning:.0f} GFLOP/s. This counts the operations of the
shared form: each prompt once; multiplications and additions of all linear layers and of the attention, forward and
backward. The products of the linear layers alone, of the same shapes, reach {torch:.0f} GFLOP/s with torch's own
library and {onednn:.0f} with oneDNN. The rest is memory traffic: activations, their gradients and the rotary
embedding read and write each number once for few operations. [Whole updates](limit.md) has the same with sampling.

## Memory of learning

Peak MiB above the model, by default and with `learn.micro_batch_tokens=None`:

{memory}
"""
REMARKS = """- Attention reads all earlier tokens, so its part grows with the square of a length.
- With the number of prompts, of rows, of layers and of ids, time grows about linearly or less."""


@click.command()
@click.option('--rounds', default=3, show_default=True)
@click.option('--only', default=','.join(VARIED), show_default=True, help='Sizes that vary, comma-separated.')
@click.option('--memory', 'of_memory', default=None, hidden=True)
@click.option('--write/--no-write', default=True, help='Whether to write docs/results/growth.md.')
def main(rounds: int, only: str, of_memory: Optional[str], write: bool) -> None:
    """Measure growth, rate and memory."""
    torch.set_num_threads(1)  # so that the processor's time is the time that passes
    if of_memory is not None:
        click.echo(json.dumps(_peaks(*json.loads(of_memory))))
        return
    rates = rate(rounds)
    products = max(rates['torch'], rates['oneDNN'])
    lines = [line for name in only.split(',') for line in measure(name, rounds, products)]
    peaks = [
        [
            f'{groups * BASE["group"]} rows',
            *(f'{memory(dict(BASE, prompts=groups), budget)[1]:.0f}' for budget in (BUDGET, None))
        ] for groups in (8, 16, 32)
    ]
    head = ['varies', 'size', 'sampling, ms', 'learning, ms', 'share', 'sampling, MiB', 'learning, MiB']
    text = TEXT.format(
        base=', '.join(f'{key} {value}' for key, value in BASE.items()),
        products=products,
        rounds=rounds,
        long=LONG,
        on=machines([measured_on()]),
        table=tabulate(lines, head, tablefmt='pipe', disable_numparse=True),
        remarks=REMARKS,
        learning=rates['learning'],
        torch=rates['torch'],
        onednn=rates['oneDNN'],
        memory=tabulate(peaks, ['', 'by default', 'all at once'], tablefmt='pipe'),
    )
    click.echo(text)
    if write:
        with open(os.path.join(ROOT, 'docs', 'results', 'growth.md'), 'w') as f:
            f.write(text)


if __name__ == '__main__':
    main()
