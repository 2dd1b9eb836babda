import torch
from torch import Tensor

ADVANTAGE_METHODS = ('grpo', 'no_std')


def group_advantage(reward: Tensor, group: Tensor, method: str = 'grpo', eps: float = 1e-4) -> Tensor:
    """
    Overview:
        Advantage of each trajectory relative to its group.

        - ``grpo``: (reward - group mean) / (group standard deviation + eps), section 4.1.2 of \
          https://arxiv.org/abs/2402.03300, with the unbiased standard deviation, as TRL and verl take it.
        - ``no_std``: reward - group mean, Dr. GRPO, https://arxiv.org/abs/2503.20783.

        A group of equal rewards has advantage 0. A group of one has advantage 0: it says nothing about itself.
    Arguments:
        - reward (:obj:`torch.FloatTensor`): One reward a trajectory.
        - group (:obj:`torch.LongTensor`): Group ids, any integers, groups of any and unequal sizes in any order.
        - method (:obj:`str`): One of ``ADVANTAGE_METHODS``.
        - eps (:obj:`float`): Added to the standard deviation.
    Returns:
        - adv (:obj:`torch.FloatTensor`): The advantages.
    Shapes:
        - reward (:obj:`torch.FloatTensor`): :math:`(B, )`
        - group (:obj:`torch.LongTensor`): :math:`(B, )`
        - adv (:obj:`torch.FloatTensor`): :math:`(B, )`
    Raises:
        - ValueError: If ``method`` is unknown or the shapes differ.
    """
    if method not in ADVANTAGE_METHODS:
        raise ValueError(f'method = {method!r}: must be one of {ADVANTAGE_METHODS}')
    if reward.dim() != 1 or group.shape != reward.shape:
        raise ValueError(f'reward {tuple(reward.shape)} and group {tuple(group.shape)}: both must be of shape (B, )')
    _, member = torch.unique(group, return_inverse=True)  # (B, ) in 0 .. number of groups - 1
    size = torch.bincount(member).to(reward.dtype)  # (P, )

    def group_sum(x: Tensor) -> Tensor:
        return torch.zeros_like(size).index_add(0, member, x)  # (P, )

    centred = reward - (group_sum(reward) / size)[member]
    # Rounding may leave 1e-17 of a group of equal rewards: not a difference, and dividing must not amplify it.
    centred = centred.masked_fill(equal_groups(reward, member)[member], 0)
    if method == 'no_std':
        return centred
    std = (group_sum(centred ** 2) / (size - 1).clamp(min=1)).sqrt()
    return centred / (std[member] + eps)


def equal_groups(reward: Tensor, group: Tensor) -> Tensor:
    """
    Overview:
        Which groups have equal rewards throughout, and so nothing to learn from.
    Arguments:
        - reward (:obj:`torch.FloatTensor`): One reward a row.
        - group (:obj:`torch.LongTensor`): Group numbers 0 to P - 1.
    Returns:
        - equal (:obj:`torch.BoolTensor`): One flag a group.
    Shapes:
        - reward (:obj:`torch.FloatTensor`): :math:`(B, )`
        - group (:obj:`torch.LongTensor`): :math:`(B, )`
        - equal (:obj:`torch.BoolTensor`): :math:`(P, )`
    """
    groups = int(group.max()) + 1 if len(group) else 0
    low = reward.new_full((groups, ), float('inf')).scatter_reduce(0, group, reward, 'amin')
    high = reward.new_full((groups, ), float('-inf')).scatter_reduce(0, group, reward, 'amax')
    return low == high
