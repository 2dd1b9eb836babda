"""What the importance ratio is relative to."""
import torch
from torch import Tensor

from ding_grpo.data.batch import Batch


def fresh_rows(batch: Batch, optimizer_steps: int) -> Tensor:
    """The rows (B, 1), or the tokens (B, S), that were sampled with the current weights, after so many optimizer
    steps."""
    fresh = batch.sampled_after == optimizer_steps
    return fresh if fresh.dim() == 2 else fresh.unsqueeze(1)


def first_log_probs(batch: Batch, logp: Tensor, optimizer_steps: int) -> Tensor:
    """The log-probabilities (B, S) that ratios are relative to if arithmetic is not float32. In rows that the current
    weights sampled, these are the learner's own ``logp``, which differ from the sampler's by rounding. In the other
    rows they are the sampler's."""
    return torch.where(fresh_rows(batch, optimizer_steps), logp.detach(), batch.logp_old)
