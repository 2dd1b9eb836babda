"""
The gradient of self-distillation (``policy.teacher.self``), in a world where the teacher is an ideal reader: with a
right solution in its prompt, it is the policy given that its completion is right. With the reward R as the probability
of that, V(s) = E[R | s] after the tokens s, and a share t of trust in the context:

    q(a | s) = p(a | s) (1 - t + t V(s a) / V(s))

The policy gradient weights grad log p(a | s) by V(s a) - V(s), reverse KL by log(q / p), and forward KL by q / p - 1,
which is t (V(s a) - V(s)) / V(s).
"""
from itertools import product
from typing import Iterator

import torch
from torch import Tensor

from ding_grpo.rl_utils import DIVERGENCES, LinearOutput, linear_divergence, sampled_divergence

from .batches import Batches
from .estimate import Bench, estimate
from .table import Line
from .world import World

TRUST = (0.5, 0.9)


def teacher(world: World, logits: Tensor, trust: float) -> Tensor:
    """Log-probabilities (C, S, V) of the teacher before each token of each completion."""
    p = world.log_prob_of_rows(logits).exp()
    same = (world.prompt.unsqueeze(1) == world.prompt).float().to(p)  # (C, C): has the same tokens so far
    found = []
    for t in range(world.token.shape[1]):
        with_next = torch.nn.functional.one_hot(world.token[:, t], logits.shape[1]).to(p)  # (C, V)
        chance, reward = same @ (p.unsqueeze(1) * with_next), same @ ((p * world.reward).unsqueeze(1) * with_next)
        value = reward.sum(1, keepdim=True) / chance.sum(1, keepdim=True)
        ratio = torch.where(value > 0, reward / chance / value, 1.)
        found.append(logits.log_softmax(-1)[world.state[:, t]] + (1 - trust + trust * ratio).log())
        same = same * (world.token[:, t].unsqueeze(1) == world.token[:, t])
    return torch.stack(found, dim=1)


def steps(world: World, logits: Tensor, divergence: str, exact: bool, trust: float) -> Tensor:
    """Minus the gradient (C, D) of the divergence, summed over the tokens of each completion."""
    of_teacher, unit = teacher(world, logits, trust), torch.eye(logits.shape[1], dtype=logits.dtype)

    def loss(table: Tensor) -> Tensor:  # (C, )
        if exact:
            student, other = LinearOutput(table[world.state], unit), LinearOutput(of_teacher, unit)
            return (linear_divergence(student, other, world.weight, divergence)[0] * world.weight).sum(1)
        logp = world.log_prob(table)
        taken = of_teacher.gather(-1, world.token.unsqueeze(-1)).squeeze(-1) * world.weight
        return (sampled_divergence(logp, logp.detach(), taken, divergence)[0] * world.weight).sum(1)

    table = logits.detach().requires_grad_()
    found = loss(table)
    return -torch.stack([torch.autograd.grad(x, table, retain_graph=True)[0].flatten() for x in found])


def run(bench: Bench, seed: int) -> Iterator[Line]:
    """As ``Bench.run``, without staleness: one line for each divergence, form and trust."""
    world, learner, _, generator = bench.world(seed)
    true = world.gradient(learner)
    for size in bench.group_sizes:
        batches = Batches.make(world, learner, size, bench.samples, generator)
        for divergence, exact, trust in product(DIVERGENCES, (True, False), TRUST):
            of_rows = steps(world, learner, divergence, exact, trust)
            found = estimate(of_rows[batches.row].mean(1), batches.probability, true, batches.exact)
            how = 'exact' if exact else 'sampled'
            yield found.line(seed, size, f'{divergence}, {how}, trust {trust:g}')
