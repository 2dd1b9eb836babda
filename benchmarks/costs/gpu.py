"""
Sampling and learning at the sizes of Qwen2.5 on a GPU, beside TRL where it is installed: tokens per second, share of
the rate of bare products, and peak memory, with random weights. TRL samples by ``generate``, and by vLLM in the same
process where that is installed too. Rows are uneven: prompts have 32 tokens or more, and completions end by chance.
Each line is printed as soon as it is measured, so that a run that is cut off loses none.
`--device cpu --small` tries itself without a GPU.
"""
import importlib.util
import time
from typing import Dict, Iterator, List, NamedTuple

import click
import torch
from torch import Tensor

import ding_grpo  # noqa: F401  so that DI-engine's import is quiet
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

    def some_prompts(self) -> List[Tensor]:
        """Of uneven lengths."""
        generator = torch.Generator().manual_seed(1)
        lengths = torch.linspace(min(32, self.prompt), self.prompt, self.prompts).long().tolist()
        return [torch.randint(3, self.vocabulary, (length, ), generator=generator) for length in lengths]

    def config(self) -> Dict:
        return dict(
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

    def model(self, arithmetic: str, device: str) -> CausalLM:
        torch.manual_seed(0)
        with torch.device(device):
            return CausalLM(config=self.config(), **ARITHMETIC[arithmetic]).to(device)


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


def product_rate(arithmetic: str, device: str, small: bool) -> float:
    """Operations a second of bare matrix products of 4,096 rows (256, small)."""
    dtype = torch.bfloat16 if 'bfloat16' in arithmetic else torch.float32
    a = torch.randn(256 if small else 4096, 256 if small else 4096, device=device, dtype=dtype)
    a @ a
    start = synchronized(device)
    for _ in range(10):
        a @ a
    return 20 * len(a) ** 3 / (synchronized(device) - start)


def sample(model: CausalLM, size: Size, prompts: List[Tensor], device: str) -> Rollout:
    """A token is one of those that end a completion once in half the limit."""
    uniform = torch.rand(len(prompts), size.tokens, dtype=torch.double).to(device)
    ends = range(2 * size.vocabulary // size.tokens)
    return generate(model, PromptBatch.of(prompts, device), size.tokens, ends, Sampling(), uniform)


def learn(model: CausalLM, prompts: List[Tensor], rollout: Rollout, device: str) -> None:
    """The gradient of an on-policy loss, by micro-batches of whole groups."""
    each = len(prompts) // PARTS if len(prompts) >= PARTS else len(prompts)
    for start in range(0, len(prompts), each):
        rows = slice(start, start + each)
        length = rollout.length[rows]
        hidden = model.completion_hidden(PromptBatch.of(prompts[rows], device), rollout.action[rows], length)
        logp = linear_log_prob(hidden, index=rollout.action[rows].clamp(min=0), **model.output_head()._asdict())
        mask = torch.arange(logp.shape[1], device=logp.device) < length.to(logp.device).unsqueeze(1)
        (-(logp * mask).sum() / mask.sum() / PARTS).backward()


def measure(size: Size, arithmetic: str, device: str, rounds: int) -> Iterator[Dict[str, float]]:
    """Tokens per second of sampling and of learning, the operations a second of learning in linear layers, and GiB at
    most; of each round but the first."""
    model = size.model(arithmetic, device)
    weights = sum(m.weight.numel() for m in model.lm.modules() if isinstance(m, torch.nn.Linear))
    prompts = size.some_prompts()
    rows = [prompt for prompt in prompts for _ in range(size.rows)]
    for round_ in range(rounds + 1):
        if device == 'cuda':
            torch.cuda.reset_peak_memory_stats()
        times = [synchronized(device)]
        rollout = sample(model, size, rows, device)
        times.append(synchronized(device))
        learn(model, rows, rollout, device)
        times.append(synchronized(device))
        model.zero_grad()
        tokens, read = int(rollout.length.sum()), sum(map(len, prompts)) + int(rollout.length.sum())
        if round_ > 0:
            yield dict(
                sampling=tokens / (times[1] - times[0]),
                learning=tokens / (times[2] - times[1]),
                operations=6 * weights * read / (times[2] - times[1]),
                memory=torch.cuda.max_memory_allocated() / GIB if device == 'cuda' else 0.,
                whole=tokens / (times[2] - times[0]),
            )


def spread(values: List[float], digits: str) -> str:
    low, middle, high = min(values), sorted(values)[len(values) // 2], max(values)
    return f'{middle:{digits}} ({low:{digits}} to {high:{digits}})'


def line(name: str, arithmetic: str, found: List[Dict[str, float]], rate: float, device: str) -> str:
    cells = [spread([each[part] for each in found], ',.0f') for part in ('sampling', 'learning', 'whole')]
    cells.append(spread([each['operations'] / rate for each in found], '.2f'))
    cells.append(spread([each['memory'] for each in found], '.1f') if device == 'cuda' else 'not measured')
    return f"| {' | '.join([name, arithmetic, *cells])} |"


def peer_lines(size: Size, device: str, rounds: int, vllm: bool = False) -> None:
    """Print a line for each update of TRL; where vLLM cannot run, the reason in place of its line."""
    name = f"TRL{' with vLLM' if vllm else ''}, {'bfloat16' if device == 'cuda' else 'float32'}"
    if vllm and (device != 'cuda' or importlib.util.find_spec('vllm') is None):
        reason = 'needs a GPU' if device != 'cuda' else 'is not installed'
        click.echo(f'| {size.name} | {name}: left out, vLLM {reason} | | | | | |')
        return
    from benchmarks.costs.gpu_peer import measure_peer
    for seconds, tokens, memory in measure_peer(size, device, rounds, vllm):
        click.echo(f'| {size.name} | {name} | | | {tokens / seconds:,.0f} | | {memory:.1f} |')


@click.command()
@click.option('--device', default='cuda', show_default=True, type=click.Choice(['cuda', 'cpu']))
@click.option('--small', is_flag=True, help='A model of 0.1 M parameters.')
@click.option('--rounds', default=3, show_default=True, help='Measured rounds of each row, after one that is not.')
def main(device: str, small: bool, rounds: int) -> None:
    """Measure all sizes in all kinds of arithmetic; TRL after the first size, and with vLLM at the end."""
    if device == 'cuda' and not torch.cuda.is_available():
        raise click.ClickException('no GPU was found by torch, so nothing was measured')
    where = torch.cuda.get_device_name() if device == 'cuda' else 'CPU'
    click.echo(
        f'{where}, torch {torch.__version__}. Medians of {rounds} rounds, smallest and largest in parentheses.\n'
    )
    click.echo('| model | arithmetic | sampling, tokens/s | learning, tokens/s | both | share of products | GiB |')
    click.echo('|---|---|---|---|---|---|---|')
    sizes, has_peer = SMALL if small else SIZES, importlib.util.find_spec('trl') is not None
    for size in sizes:
        for arithmetic in ARITHMETIC:
            found = list(measure(size, arithmetic, device, rounds))
            rate = product_rate(arithmetic, device, small)
            click.echo(line(size.name, arithmetic, found, rate, device))
        if has_peer and size is sizes[0]:
            peer_lines(size, device, rounds)
    if has_peer:  # at the end, since vLLM may end the program
        peer_lines(sizes[0], device, rounds, vllm=True)


if __name__ == '__main__':
    main()
