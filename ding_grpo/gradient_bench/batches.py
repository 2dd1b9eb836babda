"""Batches of groups with their probabilities: all of them, or a sample."""
from itertools import combinations, combinations_with_replacement
from math import comb, lgamma
from typing import NamedTuple, Tuple

import torch
from torch import Tensor

from .world import World


class Batches(NamedTuple):
    """K batches of B rows; a batch has one group of G rows for each prompt."""
    row: Tensor  # (K, B): completion of each row
    probability: Tensor  # (K, ), sums to 1
    exact: bool  # whether these are all batches

    @classmethod
    def make(cls, world: World, logits: Tensor, group_size: int, most: int, generator: torch.Generator) -> 'Batches':
        """All batches if there are at most ``most``, otherwise a sample of ``most``."""
        groups = comb(len(world.prompt) // world.prompts + group_size - 1, group_size)  # of a prompt, but for the order
        if groups ** world.prompts <= most:
            return cls.all(world, logits, group_size)
        return cls.sample(world, logits, group_size, most, generator)

    @classmethod
    def all(cls, world: World, logits: Tensor, group_size: int) -> 'Batches':
        """All batches that a policy can sample, without regard to the order of the rows of a group."""
        each = len(world.prompt) // world.prompts  # completions of a prompt
        of_rows = world.log_prob_of_rows(logits).view(-1, each)
        row, log_probability = multisets(of_rows[0], group_size)
        for prompt in range(1, world.prompts):
            count, (group, of_group) = len(row), multisets(of_rows[prompt], group_size)
            row = torch.cat([row.repeat_interleave(len(group), 0), (group + prompt * each).repeat(count, 1)], dim=1)
            log_probability = (log_probability.unsqueeze(1) + of_group).flatten()
        return cls(row, log_probability.exp(), True)

    @classmethod
    def sample(
            cls, world: World, logits: Tensor, group_size: int, number: int, generator: torch.Generator
    ) -> 'Batches':
        """Draw batches as the policy samples them."""
        prompts = world.prompts
        p = world.log_prob_of_rows(logits).exp().view(prompts, -1)
        drawn = torch.multinomial(p, number * group_size, replacement=True, generator=generator)
        drawn = (drawn + torch.arange(prompts).unsqueeze(1) * p.shape[1]).view(prompts, number, group_size)
        return cls(drawn.transpose(0, 1).flatten(1), torch.full((number, ), 1 / number, dtype=torch.double), False)

    def without_longest(self, world: World, extra: int) -> 'Batches':
        """The batches that are left of groups of one prompt when the longest rows of each, ``extra`` of them, are
        dropped, as ``policy.collect.extra_rows`` does. Rows of one length are in any order, so each choice among them
        is equally likely; in a sample of batches the order is that of the draws."""
        rows = self.row.shape[1]
        kept = torch.tensor(list(combinations(range(rows), rows - extra)))  # (N, B - extra)
        length = world.weight.sum(1)[self.row][:, kept].sum(-1)  # (K, N)
        shortest = length == length.min(1, keepdim=True).values
        if self.exact:
            batch, choice = shortest.nonzero().T
        else:
            batch, choice = torch.arange(len(self.row)), shortest.int().argmax(1)  # the first rows among equal ones
        probability = self.probability / (shortest.sum(1) if self.exact else 1)
        return Batches(self.row[batch.unsqueeze(1), kept[choice]], probability[batch], self.exact)


def multisets(log_probability: Tensor, size: int) -> Tuple[Tensor, Tensor]:
    """All ways to draw so many of the things 0 .. E - 1, without regard to their order, (N, size), and the logarithm of
    their probabilities (N, ), from that of each thing (E, ). If thing c occurs n_c times, the probability is
    multinomial, size! prod_c p_c^n_c / n_c!."""
    drawn = torch.tensor(list(combinations_with_replacement(range(len(log_probability)), size)))  # (N, size)
    times = torch.zeros(len(drawn), len(log_probability), dtype=torch.double)
    times.scatter_add_(1, drawn, torch.ones(drawn.shape, dtype=torch.double))
    orders = lgamma(size + 1) - torch.lgamma(times + 1).sum(1)  # log of their number
    return drawn, orders + log_probability[drawn].sum(1)
