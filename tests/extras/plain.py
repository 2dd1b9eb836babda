"""What plain transformers computes of rows, each read alone, and a step of a policy that is compared with it."""
from contextlib import contextmanager

import pytest
import torch

from ding_common import ConfigError
from tests.policies import gradient, vector


def plain_logits(model, batch, prompts=None):
    """(B, S, V) after the rows' prompts or others; 0 after a row's end."""
    found = torch.zeros(*batch.action.shape, model.output_tokens)
    for row, prompt in enumerate(batch.prompts if prompts is None else prompts):
        ids = torch.cat([prompt, batch.action[row, :batch.length[row]]])
        logits = model.lm(ids.unsqueeze(0)).logits[0, len(prompt) - 1:-1, :model.output_tokens]
        found[row, :batch.length[row]] = logits
    return found


def plain_log_probs(model, batch, temperature=1.):
    """(B, S), of all tokens; those after a row's end may be anything."""
    logp = (plain_logits(model, batch) / temperature).log_softmax(-1)
    return logp.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)


def assert_step(policy, learned, loss):
    """One step on these rows has the gradient of this loss; returns its metrics."""
    expected = vector(torch.autograd.grad(loss, list(policy.model.parameters())))
    metrics = policy.updater.step(learned)
    clipped = min(1, policy.cfg.learn.grad_clip_value / metrics['grad_norm'])
    assert torch.allclose(gradient(policy), expected * clipped, atol=1e-6) and expected.abs().max() > 1e-4
    return metrics


@contextmanager
def refused(told):
    """By a ``ConfigError`` of one line."""
    with pytest.raises(ConfigError, match=told) as error:
        yield
    assert '\n' not in str(error.value)
