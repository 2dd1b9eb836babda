"""Log-probabilities as any textbook computes them, with the whole (B, S, V) tensor of logits."""
import torch
from torch.profiler import ProfilerActivity, profile

from ding_grpo.rl_utils import entropy, naive_method

B, S, H, V = 2, 3, 4, 7
OPTIONS = [
    dict(),
    dict(temperature=0.7),
    dict(scale=0.5),
    dict(softcap=1.5),
    dict(temperature=1.3, scale=2., softcap=3.),
]


def inputs(dtype=torch.float64, seed=0):
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    return randn(B, S, H), randn(V, H), randn(V), torch.randint(0, V, (B, S), generator=generator)


def plain(hidden, weight, bias, index, temperature=1., scale=1., softcap=None, kept=None, change=lambda logit: logit):
    """Log-probability, entropy, sum of squares; ``change`` is what rules do to logits, ``kept`` are ids that stay."""
    logit = (hidden @ weight.T + bias) * scale
    logit = change(logit if softcap is None else softcap * torch.tanh(logit / softcap)) / temperature
    if kept is not None:
        allowed = (kept.unsqueeze(-1) == torch.arange(logit.shape[-1])).any(-2)
        logit = logit.masked_fill(~allowed, float('-inf'))
    return naive_method(logit, index), entropy(logit), logit.softmax(-1).square().sum(-1)


def assert_same(found, expected, inputs):
    """Values, and gradients of log-probability and entropy, together and each alone."""
    upstream = torch.randn(2, B, S, dtype=torch.float64)
    for a, b in zip(found, expected):
        assert torch.allclose(a, b, atol=1e-12)
    for chosen in (slice(2), slice(1), slice(1, 2)):
        a, b = (
            torch.autograd.grad(sum((x * u).sum() for x, u in zip(out[chosen], upstream)), inputs, retain_graph=True)
            for out in (found, expected)
        )
        for x, y in zip(a, b):
            assert torch.allclose(x, y, atol=1e-12)


def allocations(function):
    """Bytes of memory that a function takes, one number for each time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        function()
    return [event.self_cpu_memory_usage for event in prof.events()]
