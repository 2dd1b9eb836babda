"""How the rewards of a group are compared; a method is a function in ``_METHODS``. ``ding_grpo/learn/advantage.py``
selects what is compared."""
from typing import Callable, Dict, NamedTuple, Optional

import torch
from torch import Tensor

from .check import check_choice, check_leading, check_number, check_tensor


def group_advantage(
        reward: Tensor,
        group: Tensor,
        method: str = 'grpo',
        eps: float = 1e-4,
        length: Optional[Tensor] = None,
) -> Tensor:
    """
    Overview:
        Advantage of each trajectory relative to its group. With reward r, and for its group the mean m, the unbiased \
        standard deviation s and the size G:

        - ``grpo``: (r - m) / (s + eps), section 4.1.2 of https://arxiv.org/abs/2402.03300; the standard deviation is \
          unbiased as in TRL and verl.
        - ``no_std``: r - m, Dr. GRPO, https://arxiv.org/abs/2503.20783.
        - ``rloo``: r - mean of the others = (r - m) G / (G - 1), https://arxiv.org/abs/2402.14740.
        - ``batch``: (r - m) / (standard deviation of all rewards + eps), https://arxiv.org/abs/2508.08221.
        - ``reinforce_plus_plus_baseline``: r - m, then normalised to mean 0 and variance 1 over all tokens, \
          https://arxiv.org/abs/2501.03262. With ``length`` each row is weighted by its number of tokens, as in verl.
        - ``pass_k``: (best - second best) / (s + eps) for the best row of a group, 0 for the others, \
          https://arxiv.org/abs/2503.19595.
        - ``opo``: r - sum(length r) / sum(length) over the group, https://arxiv.org/abs/2505.23585.
        - ``gpg``: (r - m) B / (number of rows in groups of unequal rewards), https://arxiv.org/abs/2504.02546. The \
          factor replaces the rows that teach nothing. verl counts rows whose reward is 0 in their place.
        - ``max_rl``: (r - m) / m, and 0 if m is not positive, for rewards of at least 0, \
          https://arxiv.org/abs/2602.02710.
        - ``batch_mean``: r - mean of all rewards, FlashREINFORCE, \
          https://github.com/yifanzhang-pro/FlashREINFORCE. It compares no groups, which may have one row.

        A group of one row, or of equal rewards, carries no information: its advantage is 0 before any shift over the \
        batch. Only ``reinforce_plus_plus_baseline`` shifts; there such rows get minus the mean, scaled. In \
        ``batch_mean`` a row is compared with all others, so this does not apply.
    Arguments:
        - eps (:obj:`float`): Added to the standard deviation.
        - length (:obj:`Optional[torch.Tensor]`): Number of tokens of each trajectory; required by ``opo``.
    Shapes:
        - reward, group, length, adv: :math:`(B, )`
    """
    check_choice('method', method, ADVANTAGE_METHODS)
    check_groups(reward, group)
    check_number('eps', eps)
    check_tensor('length', length, tuple(reward.shape), '(B, )', 'numbers', optional=True)
    if length is not None and (length < 0).any():
        raise ValueError(f'length = {length.tolist()}: must not be negative')
    if method == 'opo' and length is None:
        raise ValueError("length = None: method 'opo' needs the number of tokens of each trajectory, of shape (B, )")
    if reward.numel() == 0:
        return torch.zeros_like(reward)
    _, member = torch.unique(group, return_inverse=True)  # (B, ) in 0 .. number of groups - 1
    # in float64: squares of rewards may overflow float32, and long sums lose precision
    return _METHODS[method](_Groups(reward.double(), member, eps, length)).to(reward.dtype)


def return_to_go(reward: Tensor, discount_factor: float) -> Tensor:
    """Discounted sum of the rewards from each step on, R_t = r_t + discount_factor R_(t + 1), (B, S). Rewards are 0
    after the end of a row, and the discount factor is in [0, 1]."""
    check_leading('reward', reward, '(B, S)')
    check_number('discount_factor', discount_factor, high=1)
    following = reward.new_zeros(len(reward))
    columns = []
    for r in reversed(reward.unbind(1)):
        following = r + discount_factor * following
        columns.append(following)
    return torch.stack(columns[::-1], dim=1) if columns else torch.zeros_like(reward)


def step_advantage(return_: Tensor, weight: Tensor, group: Tensor, method: str = 'grpo', eps: float = 1e-4) -> Tensor:
    """
    Overview:
        Advantage of each step relative to the returns of all rows of its group from the same step on. A row that has \
        ended is included with the return after its end, which is 0 after a terminal state. Without such rows, the \
        longest row would be compared only with itself: the best episode would learn nothing from its later steps.
    Arguments:
        - return_ (:obj:`torch.FloatTensor`): Return from each step on, also after the end of a row.
        - method (:obj:`str`): ``no_std`` subtracts the mean of the rows at that step. ``rloo`` subtracts the mean of \
            the other rows. ``grpo`` divides ``no_std`` by its root mean square over all steps of the group.
        - eps (:obj:`float`): Added to that root mean square.
    Returns:
        - adv (:obj:`torch.FloatTensor`): The advantages, 0 after the end of a row.
    Shapes:
        - return_, weight, adv (:obj:`torch.FloatTensor`): :math:`(B, S)`
        - group (:obj:`torch.LongTensor`): :math:`(B, )`
    """
    check_choice('method', method, STEP_ADVANTAGE_METHODS)
    check_leading('return_', return_, '(B, S)')
    check_tensor('weight', weight, tuple(return_.shape), '(B, S)', 'numbers')
    counted = weight != 0
    check_groups(return_.sum(1), group)
    if return_.numel() == 0:
        return torch.zeros_like(return_)
    _, member = torch.unique(group, return_inverse=True)  # (B, )
    step = torch.arange(return_.shape[1], device=group.device)
    key = member.unsqueeze(1) * len(step) + step  # (B, S): one number per group and step
    adv = group_advantage(return_.flatten(), key.flatten(), 'rloo' if method == 'rloo' else 'no_std')
    adv = adv.view_as(return_) * counted
    if method == 'grpo':
        square = torch.stack([adv.double().square().sum(1), counted.sum(1)], dim=1)  # (B, 2)
        square, steps = sum_of_group(square, member).unbind(1)
        adv = _over(adv, ((square / steps.clamp(min=1)).sqrt() + eps).unsqueeze(1).to(adv.dtype))
    return adv


def anchor_advantage(return_: Tensor, anchor: Tensor, group: Tensor) -> Tensor:
    """
    Overview:
        Advantage of each turn relative to the turns that other rows of the group took in the same state, its anchor, \
        as in GiGPO, https://arxiv.org/abs/2505.10978: return from here minus the mean of the other rows'. A row \
        alone at an anchor gets 0. Its second visit of an anchor is left out: what happens there depends on the first.
    Arguments:
        - anchor (:obj:`torch.LongTensor`): Number of the state in which each turn is taken, equal for equal states of \
            a group; negative for a state of its own and after the end of a row.
    Shapes:
        - return_, anchor, adv: :math:`(B, T)`
        - group (:obj:`torch.LongTensor`): :math:`(B, )`
    """
    check_leading('return_', return_, '(B, T)')
    check_tensor('anchor', anchor, tuple(return_.shape), '(B, T)', 'int64')
    check_groups(return_.sum(1), group)
    turns = anchor.shape[1]
    before = torch.ones(turns, turns, dtype=torch.bool, device=anchor.device).tril(-1)  # [t, u]: u is before t
    again = ((anchor.unsqueeze(2) == anchor.unsqueeze(1)) & before).any(2)  # (B, T)
    compared = (anchor >= 0) & ~again
    state = torch.stack([group.unsqueeze(1).expand_as(anchor)[compared], anchor[compared]], dim=1)  # (M, 2)
    _, key = state.unique(dim=0, return_inverse=True)
    return torch.zeros_like(return_).masked_scatter(compared, group_advantage(return_[compared], key, 'rloo'))


class _Groups(NamedTuple):
    reward: Tensor  # (B, )
    member: Tensor  # (B, ) in 0 .. P - 1
    eps: float
    length: Optional[Tensor]  # (B, )

    def sum(self, x: Tensor) -> Tensor:
        return sum_of_group(x, self.member)

    def size(self) -> Tensor:
        return self.sum(torch.ones_like(self.reward))

    def mean(self) -> Tensor:
        return self.sum(self.reward) / self.size()

    def equal(self) -> Tensor:
        return equal_groups(self.reward, self.member)[self.member]

    def centred(self, baseline: Optional[Tensor] = None) -> Tensor:
        """Distance to the group's mean or another baseline. It is exactly 0 where the rewards of a group are equal:
        a later division must not amplify rounding errors."""
        return (self.reward - (self.mean() if baseline is None else baseline)).masked_fill(self.equal(), 0)

    def std(self) -> Tensor:
        return (self.sum(self.centred() ** 2) / (self.size() - 1).clamp(min=1)).sqrt()


def _over(difference: Tensor, scale: Tensor) -> Tensor:
    """The quotient; 0 where the scale is 0 (only with ``eps=0``), since the difference is then 0."""
    return difference / scale.masked_fill(scale == 0, 1)


def _grpo(g: _Groups) -> Tensor:
    return _over(g.centred(), g.std() + g.eps)


def _batch(g: _Groups) -> Tensor:
    std = g.reward.std() if len(g.reward) > 1 else g.reward.new_zeros(())
    return _over(g.centred(), std + g.eps)


def _reinforce_plus_plus_baseline(g: _Groups) -> Tensor:
    centred = g.centred()
    return whiten(centred, torch.ones_like(centred) if g.length is None else g.length.to(centred.dtype))


def whiten(x: Tensor, weight: Tensor) -> Tensor:
    """Numbers of any shape, in float64, normalised to mean 0 and unbiased variance 1, where ``weight`` is how often
    each counts. Exactly 0 if those that count are equal."""
    total, counted = weight.sum(), x[weight != 0]
    if total <= 1 or (counted == counted[0]).all():
        return torch.zeros_like(x)
    mean = (x * weight).sum() / total
    variance = ((x - mean) ** 2 * weight).sum() / (total - 1)
    return (x - mean) * (variance + 1e-8).rsqrt()  # 1e-8 as in verl


def _pass_k(g: _Groups) -> Tensor:
    adv = torch.zeros_like(g.reward)
    std = g.std()
    for number in g.member.unique():
        rows = (g.member == number).nonzero().squeeze(-1)
        if len(rows) > 1:
            (best, second), index = g.reward[rows].topk(2)
            row = rows[index[0]]
            adv[row] = _over(best - second, std[row] + g.eps)
    return adv


def _opo(g: _Groups) -> Tensor:
    length = g.length.to(g.reward.dtype)
    total = g.sum(length)
    return g.centred(g.sum(length * g.reward) / total.masked_fill(total == 0, 1))


_METHODS: Dict[str, Callable[[_Groups], Tensor]] = dict(
    grpo=_grpo,
    no_std=_Groups.centred,
    rloo=lambda g: g.centred() * g.size() / (g.size() - 1).clamp(min=1),
    batch=_batch,
    reinforce_plus_plus_baseline=_reinforce_plus_plus_baseline,
    pass_k=_pass_k,
    opo=_opo,
    gpg=lambda g: g.centred() * len(g.reward) / (~g.equal()).sum().clamp(min=1),
    batch_mean=lambda g: (g.reward - g.reward.mean()).masked_fill((g.reward == g.reward[0]).all(), 0),
    max_rl=lambda g: torch.where(g.mean() > 0, _over(g.centred(), g.mean()), 0),
)
ADVANTAGE_METHODS = tuple(_METHODS)
STEP_ADVANTAGE_METHODS = ('grpo', 'no_std', 'rloo')


def equal_groups(reward: Tensor, group: Tensor) -> Tensor:
    """Which of the P groups have only equal rewards, and thus no learning signal, (P, ). ``reward`` and ``group`` are
    (B, ); groups are numbers from 0 to P - 1."""
    check_groups(reward, group)
    if len(group) and group.min() < 0:
        raise ValueError(f'group from {group.min()}: must contain only numbers from 0 to P - 1')
    return extreme(reward, group, 'amin') == extreme(reward, group, 'amax')


def sum_of_group(x: Tensor, member: Tensor) -> Tensor:
    """Sum over each row's group, of numbers (B, ...) for each row; ``member`` are numbers from 0 to P - 1."""
    return x.new_zeros(int(member.max()) + 1, *x.shape[1:]).index_add(0, member, x)[member]


def extreme(x: Tensor, member: Tensor, kind: str) -> Tensor:
    """Smallest (``amin``) or largest (``amax``) number of each of the P groups, (P, ...), of (B, ...) for each row."""
    none = float('inf') if kind == 'amin' else float('-inf')
    found = x.new_full((int(member.max()) + 1 if len(member) else 0, *x.shape[1:]), none)
    return found.scatter_reduce(0, member.view(-1, *[1] * (x.dim() - 1)).expand_as(x), x, kind)


def check_groups(reward: Tensor, group: Tensor) -> None:
    """Require one reward and one integer group id per row."""
    check_leading('reward', reward, '(B, )')
    check_tensor('group', group, tuple(reward.shape), '(B, )', 'numbers')
    if group.is_floating_point() or group.dtype == torch.bool:
        raise ValueError(f'group of {group.dtype}: must be integers')
