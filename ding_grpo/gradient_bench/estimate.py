"""Bias and variance of the gradient of each loss, in one world."""
from itertools import product
from typing import Any, Iterator, List, NamedTuple, Sequence, Tuple

import torch
from torch import Tensor

from ding_grpo.rl_utils import LOSS_PRESETS, LossConfig

from .batches import Batches
from .gradients import ADVANTAGES, advantages, loss_gradients
from .table import Line
from .world import END, World


class Estimate(NamedTuple):
    """How the gradient g of a batch, as a random vector, relates to the true gradient h. Each is 0 if E g is 0."""
    scale: float  # c = <E g, h> / <h, h>, the factor of the step along the true gradient
    bias: float  # |E g - c h| / |E g|, from 0 to 1: the share of the mean step that leaves its direction
    cosine: float  # of E g and h
    noise: float  # (trace of the covariance of g)^(1/2) / |E g|
    batch_cosine: float  # mean cosine of g and h, where a batch with g = 0 counts as 0
    standard_error: float  # of E g, divided by |E g|; 0 if all batches were enumerated
    batches: int

    def line(
            self,
            seed: int,
            size: int,
            loss: str,
            advantage: str = 'none',
            staleness: float = 0.,
            kl: float = 0.
    ) -> Line:
        """A line of the table of a run, for groups of this size."""
        where = dict(loss=loss, advantage=advantage, seed=seed, staleness=staleness, group_size=size, kl=kl)
        return dict(where, **self._asdict())


def estimate(gradient: Tensor, probability: Tensor, true: Tensor, exact: bool) -> Estimate:
    """Moments of the gradients (K, D) of all batches if ``exact``, else of a sample, with their probabilities (K, ) and
    the true gradient (D, )."""
    mean = probability @ gradient
    size, of_true = mean.norm(), true.norm()
    if size <= 1e-12 * of_true:
        return Estimate(0., 0., 0., 0., 0., 0., len(gradient))
    scale = mean @ true / of_true ** 2
    deviation = (probability @ (gradient - mean).square().sum(1)).sqrt()
    of_batches = gradient.norm(dim=1)
    nothing = of_batches <= 1e-12 * size
    cosines = (gradient @ true / (of_batches * of_true).masked_fill(nothing, 1)).masked_fill(nothing, 0)
    return Estimate(
        scale=scale.item(),
        bias=((mean - scale * true).norm() / size).item(),
        cosine=(mean @ true / (size * of_true)).item(),
        noise=(deviation / size).item(),
        batch_cosine=(probability @ cosines).item(),
        standard_error=0. if exact else (deviation / size / len(gradient) ** 0.5).item(),
        batches=len(gradient),
    )


def estimates(
        config: LossConfig,
        world: World,
        learner: Tensor,
        sampler: Tensor,
        batches: Any,
        adv: Tensor,
        true: Tensor,
        divided: bool = False
) -> List[Estimate]:
    """One for each of the advantages (A, K, B, S) of ``Batches`` or ``Groups``, see ``loss_gradients``."""
    gradients = loss_gradients(config, world, learner, sampler, batches.row, adv, divided)
    return [estimate(gradient, batches.probability, true, batches.exact) for gradient in gradients]


class Bench(NamedTuple):
    """What is measured."""
    losses: Sequence[str] = tuple(LOSS_PRESETS)
    advantages: Sequence[str] = ADVANTAGES
    group_sizes: Sequence[int] = (2, 4)
    staleness: Sequence[float] = (0., 0.1, 0.5)  # standard deviation of the sampler's logits around the learner's
    vocabulary: int = 3
    length: int = 3
    prompts: int = 1
    rewards: Sequence[float] = (0., 0.2, 1.)
    samples: int = 20_000  # batches: all if they are no more, otherwise so many samples
    calls: int = 150  # the same for a loss that needs a call for each batch
    extra_rows: int = 0  # rows that are sampled in addition to those of a group, of which the longest are dropped
    reward_of: str = 'all'  # what decides the reward: all tokens of a completion, its 'first', or its 'last' two
    end_logit: float = 0.  # added to the logit of the token that ends a completion
    branches: int = 2  # at each place of a tree
    texts: str = 'one'  # of a completion; or several, each with its advantage, 'whole' or 'divided' by their number

    def world(self, seed: int) -> Tuple[World, Tensor, Tensor, torch.Generator]:
        """The world of one seed with the logits of its policy, a change of these, and the generator that drew them."""
        generator = torch.Generator().manual_seed(seed)
        world = World.make(self.vocabulary, self.length, self.prompts, self.rewards, generator, self.texts != 'one')
        shape = (self.prompts + self.vocabulary - 1, self.vocabulary)
        learner, change = torch.randn(2, *shape, generator=generator, dtype=torch.double)
        learner[:, END] += self.end_logit
        if self.reward_of != 'all':
            world = world.with_reward_of(self.reward_of == 'last', self.rewards, generator)
        return world, learner, change, generator

    def run(self, seed: int) -> Iterator[Line]:
        """Measure everything in the world of one seed, which draws the policy, the rewards and the older policy. Yields
        one line for each combination, with the fields of ``Estimate``."""
        world, learner, change, generator = self.world(seed)
        true = world.gradient(learner)
        one_by_one = [n for n in self.losses if LOSS_PRESETS[n].traits.of_batch]
        together = [n for n in self.losses if n not in one_by_one]
        for staleness, size in product(self.staleness, self.group_sizes):
            sampler = learner + staleness * change
            kl = world.divergence(sampler, learner).item()
            for losses, most in ((together, self.samples), (one_by_one, self.calls)):
                if not losses:
                    continue
                batches = Batches.make(world, sampler, size + self.extra_rows, most, generator)
                if self.extra_rows > 0:
                    batches = batches.without_longest(world, self.extra_rows)
                adv = torch.stack([advantages(name, world, learner, sampler, batches.row) for name in self.advantages])
                for loss in losses:
                    config = LOSS_PRESETS[loss].drawing_from(generator)
                    of_loss = estimates(config, world, learner, sampler, batches, adv, true, self.texts == 'divided')
                    for method, found in zip(self.advantages, of_loss):
                        yield found.line(seed, size, loss, method, staleness, kl)
