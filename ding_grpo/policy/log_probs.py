"""Log-probabilities without gradients, and those that the importance ratio is relative to."""
from typing import Optional

import torch
from torch import Tensor, nn

from ding_common import parallel

from .actor import Actor
from .batch import Batch


@torch.no_grad()
def read_log_probs(actor: Actor, model: nn.Module, batch: Batch, size: int, most_tokens: Optional[int]) -> Tensor:
    """
    Overview:
        Compute the log-probabilities of a batch's steps under a model, in the same parts as learning.
    Arguments:
        - actor (:obj:`Actor`): Reads the rows.
        - model (:obj:`nn.Module`): The policy or its reference.
        - batch (:obj:`Batch`): The rows.
        - size (:obj:`int`): Number of groups that are read at a time.
        - most_tokens (:obj:`Optional[int]`): Maximum number of tokens that are read at a time.
    Returns:
        - logp (:obj:`torch.FloatTensor`): In nats, on the CPU; 0 in rows without a weight.
    Shapes:
        - logp (:obj:`torch.FloatTensor`): :math:`(B, S)`
    """
    device = next(model.parameters()).device
    logp = torch.zeros_like(batch.logp_old, device=device)
    for rows in batch.divide(size):
        for of_chunk, part in batch.take(rows).to(device).parts(most_tokens):
            found = actor.log_prob(model, part)[0]
            logp[rows[of_chunk], :found.shape[1]] = found
    parallel.all_reduce([logp])
    return logp.cpu()


def fresh_rows(batch: Batch, optimizer_steps: int) -> Tensor:
    """
    Overview:
        Find the rows that were sampled with the current weights.
    Arguments:
        - batch (:obj:`Batch`): The rows.
        - optimizer_steps (:obj:`int`): Number of optimizer steps so far.
    Returns:
        - fresh (:obj:`torch.BoolTensor`): :math:`(B, 1)`
    """
    return (batch.sampled_after == optimizer_steps).unsqueeze(1)


def first_log_probs(batch: Batch, logp: Tensor, optimizer_steps: int) -> Tensor:
    """
    Overview:
        The log-probabilities that ratios are relative to if arithmetic is not float32. In rows that the current \
        weights sampled, these are the learner's own, which differ from the sampler's by rounding. In the other rows \
        they are the sampler's.
    Arguments:
        - batch (:obj:`Batch`): The rows.
        - logp (:obj:`torch.FloatTensor`): The learner's log-probabilities.
        - optimizer_steps (:obj:`int`): Number of optimizer steps so far.
    Returns:
        - logp (:obj:`torch.FloatTensor`): :math:`(B, S)`
    """
    return torch.where(fresh_rows(batch, optimizer_steps), logp.detach(), batch.logp_old)
