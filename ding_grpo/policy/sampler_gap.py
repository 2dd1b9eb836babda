"""
What the learner computes of tokens that its own weights have sampled: by how much it differs from what the sampler
reported, and which of the two the ratio is relative to.
"""
from typing import Any, Dict

from torch import Tensor


def fresh_rows(batch: Dict[str, Any], optimizer_steps: int) -> Tensor:
    """
    Overview:
        Which rows the weights of now have sampled.
    Arguments:
        - batch (:obj:`Dict`): From ``collate_groups``, ``split_steps`` or ``take_rows``.
        - optimizer_steps (:obj:`int`): How many steps have made the weights of now.
    Returns:
        - fresh (:obj:`torch.BoolTensor`): One flag a row.
    Shapes:
        - fresh (:obj:`torch.BoolTensor`): :math:`(B, 1)`
    """
    return batch['sampled_after'].view(-1, 1) == optimizer_steps


def sampler_gap(batch: Dict[str, Any], logp: Tensor, fresh: Tensor) -> Dict[str, float]:
    """
    Overview:
        Absolute differences between the sampler's log-probabilities and the learner's, with the same weights.
    Arguments:
        - batch (:obj:`Dict`): A mini-batch with the sampler's ``logp_old`` and ``weight``.
        - logp (:obj:`torch.FloatTensor`): The learner's.
        - fresh (:obj:`torch.BoolTensor`): The rows that are compared, see ``fresh_rows``.
    Returns:
        - gap (:obj:`Dict[str, float]`): ``sampler_gap_mean`` and ``sampler_gap_max`` over the tokens that count, in \
            nats; empty where no token does.
    Shapes:
        - logp (:obj:`torch.FloatTensor`): :math:`(B, S)`
        - fresh (:obj:`torch.BoolTensor`): :math:`(B, 1)`
    """
    gap = (logp - batch['logp_old'])[fresh & (batch['weight'] != 0)].abs()
    return {} if gap.numel() == 0 else dict(sampler_gap_mean=gap.mean().item(), sampler_gap_max=gap.max().item())
