"""
What ``policy.collect.extra_rows`` saves and how biased it is: decode steps and time on several distributions of
lengths, and the expected gradient in worlds that are small enough to enumerate. Prints two tables.

    make bench NAME=extra_rows
"""
import math
import statistics
import time
from typing import Callable, Dict, List, Tuple

import torch
from tabulate import tabulate

import ding_grpo  # noqa: F401  so that DI-engine's import is quiet
from ding_grpo.gradient_bench.batches import Batches
from ding_grpo.gradient_bench.estimate import estimate
from ding_grpo.gradient_bench.gradients import advantages
from ding_grpo.gradient_bench.world import World
from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.rollout import EarlyStop, generate

GROUPS, SIZE, COLLECTS = 8, 8, 200
EXTRA = (1, 2, 4)
TIMED, ROUNDS = 'geometric, mean 64, limit 512', 5
WORLDS, SMALL = range(5), 4  # seeds, and rows of a group
MODEL = dict(
    model_type='llama',
    vocab_size=32,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=1024
)

Draw = Callable[[int, torch.Generator], torch.Tensor]


def geometric(mean: float, limit: int) -> Draw:
    """Lengths of rows that end after each token with the same probability."""

    def draw(rows: int, generator: torch.Generator) -> torch.Tensor:
        u = torch.rand(rows, dtype=torch.double, generator=generator)
        return (torch.log(u) / math.log(1 - 1 / mean)).ceil().clamp(1, limit).long()

    return draw


def lognormal(median: float, sigma: float, limit: int) -> Draw:
    """Lengths with a long tail."""

    def draw(rows: int, generator: torch.Generator) -> torch.Tensor:
        noise = torch.randn(rows, dtype=torch.double, generator=generator)
        return (median * (sigma * noise).exp()).ceil().clamp(1, limit).long()

    return draw


LENGTHS: Dict[str, Draw] = {
    'geometric, mean 32, limit 10 (think_answer, untrained)': geometric(32, 10),
    TIMED: geometric(64, 512),
    'lognormal, median 400, sigma 0.7, limit 4096': lognormal(400, 0.7, 4096),
    'lognormal, median 400, sigma 1, limit 4096': lognormal(400, 1.0, 4096),
}


def saving(draw: Draw, extra: int, generator: torch.Generator) -> Tuple[float, float, float]:
    """
    Overview:
        Of many collects, relative to groups without extra rows: decode steps, sampled tokens, and the mean length of \
        the rows that are learned from.
    """
    length = draw(COLLECTS * GROUPS * (SIZE + extra), generator).view(COLLECTS, GROUPS, SIZE + extra)
    plain = length[..., :SIZE]
    last = length.sort(-1).values[..., SIZE - 1:SIZE]  # where the group stops
    sampled, kept = length.minimum(last), length.sort(-1).values[..., :SIZE]
    steps = last.amax((1, 2)).sum() / plain.amax((1, 2)).sum()
    return steps.item(), (sampled.sum() / plain.sum()).item(), (kept.double().mean() / plain.double().mean()).item()


def seconds(model: CausalLM, length: torch.Tensor, extra: int) -> float:
    """Processor time of sampling groups whose rows have these lengths, :math:`(groups, rows)`."""
    groups, rows = length.shape
    prompts = PromptBatch.of([torch.arange(12) + g for g in range(groups) for _ in range(rows)], torch.device('cpu'))
    keys = [(g, r) for g in range(groups) for r in range(rows)]
    stop = EarlyStop(keys, SIZE, torch.device('cpu')) if extra else None
    most = int(length.max())
    uniform = torch.rand(groups * rows, most, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    start = time.process_time()
    generate(model, prompts, most, [], uniform=uniform, limit=length.flatten(), early_stop=stop)
    return time.process_time() - start


def times() -> List[float]:
    """Median ratio of the time with extra rows to that without, on the distribution ``TIMED``."""
    torch.manual_seed(0)
    model, ratios = CausalLM(config=MODEL), {extra: [] for extra in EXTRA}
    for number in range(ROUNDS + 1):  # the first warms up
        generator = torch.Generator().manual_seed(number)
        length = LENGTHS[TIMED](GROUPS * (SIZE + max(EXTRA)), generator).view(GROUPS, -1)
        plain = seconds(model, length[:, :SIZE], 0)
        for extra in EXTRA if number else ():
            ratios[extra].append(seconds(model, length[:, :SIZE + extra], extra) / plain)
    return [statistics.median(ratios[extra]) for extra in EXTRA]


def world_of(seed: int, kind: str, generator: torch.Generator) -> World:
    """Rewards of 0, 0.2 and 1 at random, or 1 for the longest or for the shortest completions."""
    world = World.make(3, 3, 1, (0., 0.2, 1.), generator)
    length = world.weight.sum(1)
    right = dict(random=None, long=length == 3, short=length == 1)[kind]
    return world if right is None else world._replace(reward=right.double())


def bias(kind: str, extra: int) -> List[float]:
    """Medians over worlds: bias, angle in degrees, scale, and the mean length of learned rows over the policy's."""
    found = []
    for seed in WORLDS:
        generator = torch.Generator().manual_seed(seed)
        world = world_of(seed, kind, generator)
        logits = torch.randn(2, 3, 3, generator=generator, dtype=torch.double)[0]  # as the gradient bench draws it
        batches = Batches.all(world, logits, SMALL + extra).without_longest(world, extra)
        adv = advantages('rloo', world, logits, logits, batches.row)[:, :, :1]  # (K, G, 1), the same for all tokens
        gradient = (adv * world.score(logits).sum(1)[batches.row]).mean(1)  # (K, D), without a division by lengths
        of = estimate(gradient, batches.probability, world.gradient(logits), True)
        length = world.weight.sum(1)
        mean = batches.probability @ length[batches.row].mean(1)
        policy = world.log_prob_of_rows(logits).exp() @ length
        found.append([of.bias, math.degrees(math.asin(of.bias)), of.scale, (mean / policy).item()])
    return [statistics.median(column) for column in zip(*found)]


def main() -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    generator, timed = torch.Generator().manual_seed(0), times()
    table = [
        [
            name, extra, *(f'{x:.2f}'
                           for x in saving(draw, extra, generator)), f'{timed[number]:.2f}' if name == TIMED else ''
        ] for name, draw in LENGTHS.items() for number, extra in enumerate(EXTRA)
    ]
    print(
        tabulate(
            table, ['lengths', 'extra_rows', 'decode steps', 'sampled tokens', 'length learned', 'time'],
            tablefmt='github',
            disable_numparse=True
        )
    )
    print()
    table = [
        [kind, extra, *(f'{x:.3f}' for x in bias(kind, extra))] for kind in ('random', 'long', 'short')
        for extra in (0, 1, 2)
    ]
    print(
        tabulate(
            table, ['reward', 'extra_rows', 'bias', 'angle', 'scale', 'length learned'],
            tablefmt='github',
            disable_numparse=True
        )
    )


if __name__ == '__main__':
    main()
