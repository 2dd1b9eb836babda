"""
Sampling and learning at the sizes of Qwen2.5 on a GPU: tokens per second and peak memory, with random weights. Prints
a table for docs/results/by_hand.md. `--device cpu --small` tries itself without a GPU.
"""
import time
from typing import Dict, List, NamedTuple, Tuple

import click
import torch
from tabulate import tabulate
from torch import Tensor

from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.rl_utils import linear_log_prob
from ding_grpo.rollout import Rollout, Sampling, generate

GIB = 2 ** 30


class Size(NamedTuple):
    """
    Overview:
        The shape of a model, and the rows of an update: prompts, rows of each, tokens of a prompt and of a completion.
    """
    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int = 151936
    prompts: int = 8
    rows: int = 8
    prompt: int = 256
    tokens: int = 256

    def model(self, arithmetic: str, device: str) -> CausalLM:
        torch.manual_seed(0)
        config = dict(
            model_type='qwen2',
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
        )
        with torch.device(device):
            return CausalLM(config=config, **ARITHMETIC[arithmetic]).to(device)


SIZES = (
    Size('0.5 B', 896, 4864, 24, 14, 2),
    Size('1.5 B', 1536, 8960, 28, 12, 2),
)
SMALL = (Size('toy', 64, 128, 2, 4, 2, vocabulary=1000, prompts=2, rows=4, prompt=20, tokens=8), )
ARITHMETIC = {
    'float32': dict(),
    'bfloat16': dict(autocast='bfloat16'),
    'bfloat16, with output layer': dict(autocast='bfloat16', autocast_output=True),
    'the same with CUDA graphs': dict(autocast='bfloat16', autocast_output=True, cuda_graphs=True),
}
PARTS = 4  # micro-batches of an update


def synchronized(device: str) -> float:
    """The time when all work of the device is done."""
    if device == 'cuda':
        torch.cuda.synchronize()
    return time.perf_counter()


def sample(model: CausalLM, size: Size, prompts: List[Tensor], device: str) -> Rollout:
    uniform = torch.rand(len(prompts), size.tokens, dtype=torch.double).to(device)
    return generate(model, PromptBatch.of(prompts, device), size.tokens, (), Sampling(), uniform)


def learn(model: CausalLM, prompts: List[Tensor], rollout: Rollout, device: str) -> None:
    """The gradient of an on-policy loss, by micro-batches of whole groups."""
    each = len(prompts) // PARTS if len(prompts) >= PARTS else len(prompts)
    for start in range(0, len(prompts), each):
        rows = slice(start, start + each)
        hidden = model.completion_hidden(
            PromptBatch.of(prompts[rows], device), rollout.action[rows], rollout.length[rows]
        )
        logp = linear_log_prob(hidden, index=rollout.action[rows], **model.output_head()._asdict())
        (-logp.mean() / PARTS).backward()


def measure(size: Size, arithmetic: str, device: str, rounds: int) -> Dict[str, List[float]]:
    """Tokens per second of sampling and of learning in each round but the first, and GiB at most."""
    model = size.model(arithmetic, device)
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, size.vocabulary, (size.prompt, ), generator=generator) for _ in range(size.prompts)]
    rows = [prompt for prompt in prompts for _ in range(size.rows)]
    tokens, found = len(rows) * size.tokens, dict(sampling=[], learning=[], memory=[])
    for round_ in range(rounds + 1):
        if device == 'cuda':
            torch.cuda.reset_peak_memory_stats()
        times = [synchronized(device)]
        rollout = sample(model, size, rows, device)
        times.append(synchronized(device))
        learn(model, rows, rollout, device)
        times.append(synchronized(device))
        model.zero_grad()
        if round_ > 0:
            found['sampling'].append(tokens / (times[1] - times[0]))
            found['learning'].append(tokens / (times[2] - times[1]))
            if device == 'cuda':
                found['memory'].append(torch.cuda.max_memory_allocated() / GIB)
    return found


def spread(values: List[float], digits: str) -> str:
    low, middle, high = min(values), sorted(values)[len(values) // 2], max(values)
    return f'{middle:{digits}} ({low:{digits}} to {high:{digits}})'


@click.command()
@click.option('--device', default='cuda', show_default=True, type=click.Choice(['cuda', 'cpu']))
@click.option('--small', is_flag=True, help='A model of 0.1 M parameters.')
@click.option('--rounds', default=3, show_default=True, help='Measured rounds of each row, after one that is not.')
def main(device: str, small: bool, rounds: int) -> None:
    """Measure all sizes in all kinds of arithmetic."""
    if device == 'cuda' and not torch.cuda.is_available():
        raise click.ClickException('no GPU was found by torch, so nothing was measured')
    lines: List[Tuple[str, ...]] = []
    for size in SMALL if small else SIZES:
        for arithmetic in ARITHMETIC:
            found = measure(size, arithmetic, device, rounds)
            rates = (spread(found[part], ',.0f') for part in ('sampling', 'learning'))
            memory = spread(found['memory'], '.1f') if device == 'cuda' else 'not measured'
            lines.append((size.name, arithmetic, *rates, memory))
            click.echo(f'{size.name}, {arithmetic}: done', err=True)
    head = ('model', 'arithmetic', 'sampling, tokens/s', 'learning, tokens/s', 'memory, GiB')
    where = torch.cuda.get_device_name() if device == 'cuda' else 'CPU'
    click.echo(
        f'{where}, torch {torch.__version__}. Medians of {rounds} rounds, smallest and largest in parentheses.\n'
    )
    click.echo(tabulate(lines, head, tablefmt='pipe', disable_numparse=True))


if __name__ == '__main__':
    main()
