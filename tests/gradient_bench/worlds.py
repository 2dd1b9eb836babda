"""Worlds and policies for the tests of the gradient bench."""
import torch

from ding_grpo.gradient_bench.world import World


def make(vocabulary, length, prompts, seed=0, rewards=(0., 0.2, 1.)):
    """A world, and the logits of a random policy."""
    generator = torch.Generator().manual_seed(seed)
    world = World.make(vocabulary, length, prompts, rewards, generator)
    return world, torch.randn(prompts + vocabulary - 1, vocabulary, generator=generator, dtype=torch.double)
