"""Rows of completions as the policy's ``Batch``, for programs that read them without a policy."""
from typing import List

import torch
from torch import Tensor

from ding_grpo.data.batch import Batch


def batch_of(prompts: List[Tensor], action: Tensor, weight: Tensor, group_size: int = 1) -> Batch:
    """
    Overview:
        B rows, of groups in this order, without rewards.
    Arguments:
        - prompts (:obj:`List[torch.LongTensor]`): B prompts.
        - action (:obj:`torch.LongTensor`): :math:`(B, S)`
        - weight (:obj:`torch.FloatTensor`): :math:`(B, S)`
    """
    rows, zero = torch.arange(len(action)), torch.zeros(len(action), dtype=torch.long)
    return Batch(
        action=action,
        logp_old=torch.zeros_like(weight),
        weight=weight,
        length=(weight != 0).sum(1),
        turn=torch.where(weight != 0, 0, -1),
        group=rows // group_size,
        problem=zero,
        row=zero,
        group_id=rows,
        collect_iter=zero,
        sampled_after=zero,
        reward=torch.zeros_like(weight),
        reward_parts={},
        truncated=zero.bool(),
        failed=zero.bool(),
        equal=zero.bool(),
        filtered=zero.bool(),
        prompts=prompts,
    )
