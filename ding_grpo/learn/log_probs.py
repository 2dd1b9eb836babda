"""What a model computes for all rows without gradients, and what the importance ratio is relative to."""
from typing import Callable, Optional, Tuple

import torch
from torch import Tensor

from ding_common import parallel
from ding_grpo.data.batch import Batch


def read_rows(
        read: Callable[[Batch], Tensor],
        batch: Batch,
        size: int,
        most_tokens: Optional[int],
        device: torch.device,
        in_step: bool = False,
        each: Tuple[int, ...] = ()
) -> Tensor:
    """
    Overview:
        Compute a number for each step of a batch, or several, in the same parts as learning.
    Arguments:
        - read (:obj:`Callable`): Maps a part of the rows to the numbers of their steps, (b, s) and what ``each`` adds.
        - size (:obj:`int`): Number of groups that are read at a time.
        - most_tokens (:obj:`Optional[int]`): Maximum number of tokens that are read at a time.
        - in_step (:obj:`bool`): Whether all processes read the same number of parts, see ``Batch.parts``.
        - each (:obj:`Tuple[int, ...]`): Shape of what a step has, ``()`` for a number.
    Shapes:
        - numbers (:obj:`torch.FloatTensor`): :math:`(B, S, *each)`, on the CPU; 0 in rows without a weight
    """
    numbers = batch.logp_old.new_zeros((*batch.logp_old.shape, *each), device=device)
    for rows in batch.divide(size):
        for of_chunk, part in batch.take(rows).to(device).parts(most_tokens, in_step):
            found = read(part)[:len(of_chunk)]
            numbers[rows[of_chunk], :found.shape[1]] = found
    parallel.all_reduce([numbers])
    return numbers.cpu()


def fresh_rows(batch: Batch, optimizer_steps: int) -> Tensor:
    """The rows (B, 1) that were sampled with the current weights, after so many optimizer steps."""
    return (batch.sampled_after == optimizer_steps).unsqueeze(1)


def first_log_probs(batch: Batch, logp: Tensor, optimizer_steps: int) -> Tensor:
    """The log-probabilities (B, S) that ratios are relative to if arithmetic is not float32. In rows that the current
    weights sampled, these are the learner's own ``logp``, which differ from the sampler's by rounding. In the other
    rows they are the sampler's."""
    return torch.where(fresh_rows(batch, optimizer_steps), logp.detach(), batch.logp_old)
