"""
Where the time of this project's updates goes, how it grows, and how near it is to bare matrix products. No peer.
"""
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Tuple

import click
import torch

import ding_grpo  # noqa: F401  so that DI-engine's import is quiet
from benchmarks.shared.paths import ROOT, command
from benchmarks.shared.rows import batch_of
from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.rl_utils import linear_log_prob
from ding_grpo.rl_utils.log_probs.matrix_product import onednn_product
from ding_grpo.rollout import Sampling, generate

CPU = torch.device('cpu')
BASE = dict(prompts=8, prompt=256, completion=32, group=8, vocabulary=32, hidden=256, layers=2)
VARIED = dict(
    group=(4, 8, 16, 32),
    prompt=(64, 128, 256, 512),
    completion=(16, 32, 64, 128),
    vocabulary=(32, 2048, 32000),
    hidden=(128, 256, 512),
    layers=(1, 2, 4),
)
LONG = dict(prompt=512, completion=64)  # where the group is varied once more
BUDGET = 4096


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
        self.model = CausalLM(
            config=dict(
                model_type='llama',
                vocab_size=vocabulary,
                hidden_size=hidden,
                intermediate_size=4 * hidden,
                num_hidden_layers=layers,
                num_attention_heads=hidden // 64,
                max_position_embeddings=2048,
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

    def learn(self, budget: int = 0) -> None:
        """Forward and backward of the log-probabilities; with a budget in parts of so many tokens."""
        for p in self.model.parameters():
            p.grad = None
        batch = batch_of(self.prompts, self.completion, torch.ones(self.completion.shape))
        for _, part in batch.parts(budget or None):
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


def median(function: Callable, rounds: int) -> Tuple[float, float, float]:
    """Of seconds, with the smallest and the largest; the first round does not count."""
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return spread(seconds[1:])


def spread(values: List[float]) -> Tuple[float, float, float]:
    """Median, smallest and largest."""
    return statistics.median(values), min(values), max(values)


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
            start = time.perf_counter()
            for function in [update.learn] if name == 'learning' else bare[name]:
                function()
            if number > 0:
                seconds[name].append(time.perf_counter() - start)
    rates = {
        name: (update.operations() if name == 'learning' else of_products) / statistics.median(s) / 1e9
        for name, s in seconds.items()
    }
    return rates


def memory(groups: int, budget: int) -> float:
    """Peak MiB of learning above the model, in a process of its own."""
    words = command(sys.executable, 'beside_trl.growth', '--memory', f'{groups},{budget}')
    env = dict(os.environ, MALLOC_MMAP_THRESHOLD_='262144', MALLOC_TRIM_THRESHOLD_='262144')
    done = subprocess.run(words, cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.split()[-1])


def _peak(groups: int, budget: int) -> float:
    update = Update(**dict(BASE, prompts=groups))
    update.model.shares_prompts  # its trial is not counted
    update.learn(64)
    with open('/proc/self/clear_refs', 'w') as file:
        file.write('5')  # the peak is from here
    before = _status('VmRSS')
    update.learn(budget)
    return _status('VmHWM') - before


def _status(key: str) -> float:
    with open('/proc/self/status') as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(key))


def measure(rounds: int) -> Dict[str, Any]:
    """
    Overview:
        Everything; see the keys.
    """
    growth, varied = [], [(name, dict(BASE, **{name: value})) for name, values in VARIED.items() for value in values]
    varied += [('group, prompt 512, completion 64', dict(BASE, **LONG, group=group)) for group in (8, 16)]
    for name, sizes in varied:
        update, value = Update(**sizes), sizes[name.split(',')[0]]
        sample, learn = median(update.sample, rounds), median(update.learn, rounds)
        growth.append(dict(varied=name, value=value, sampling=sample, learning=learn))
        click.echo(f'{name} {value}  sampling {sample[0] * 1e3:.0f} ms  learning {learn[0] * 1e3:.0f} ms')
    rates = rate(rounds)
    click.echo(f'GFLOP/s {rates}')
    peaks = {f'{groups * BASE["group"]} rows': [memory(groups, BUDGET), memory(groups, 0)] for groups in (8, 16, 32)}
    click.echo(f'MiB with a budget of {BUDGET} tokens, and without: {peaks}')
    return dict(growth=growth, rates=rates, memory=peaks, budget=BUDGET, threads=torch.get_num_threads(), base=BASE)


@click.command()
@click.option('--rounds', default=5, show_default=True)
@click.option('--threads', default=1, show_default=True)
@click.option('--memory', 'of_memory', default=None, hidden=True)
@click.option('--out', default=None, help='File for the figures as JSON.')
def main(rounds: int, threads: int, of_memory: str, out: str) -> None:
    """Measure growth, rate and memory."""
    torch.set_num_threads(threads)
    if of_memory is not None:
        click.echo(_peak(*map(int, of_memory.split(','))))
        return
    found = measure(rounds)
    if out is not None:
        with open(out, 'w') as f:
            json.dump(found, f, indent=1)


if __name__ == '__main__':
    main()
