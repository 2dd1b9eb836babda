"""The batch that GRPO learns from: the rows of whole groups."""
from dataclasses import dataclass, fields, replace
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Union

import torch
from ding.torch_utils import to_device
from torch import Tensor
from torch.nn import functional as F

from .micro_batch import cheapest_row, most_parts, share_rows, split_rows

Obs = Union[Tensor, Dict[str, Tensor]]


@dataclass
class Batch:
    """
    Overview:
        B rows, each a trajectory of one of P groups. A step is a token of a completion, or a step of another \
        environment. S is the number of steps of the longest row, M the number of all steps with a weight.
    Shapes:
        - action (:obj:`torch.LongTensor`): :math:`(B, S)`, or floats of :math:`(B, S, N)` for continuous actions
        - logp_old (:obj:`torch.FloatTensor`): :math:`(B, S)`, log-probabilities from the sampler, in nats
        - weight (:obj:`torch.FloatTensor`): :math:`(B, S)`, 1 on steps of the policy, 0 on tokens of the environment \
            and after a row's end
        - length (:obj:`torch.LongTensor`): :math:`(B, )`, number of steps of the row, including tokens of the \
            environment
        - turn (:obj:`torch.LongTensor`): :math:`(B, S)`, the number of each step's turn, -1 after a row's end; a \
            reply of the environment belongs to the turn before it
        - group (:obj:`torch.LongTensor`): :math:`(B, )`, the index of the row's group in the batch
        - row (:obj:`torch.LongTensor`): :math:`(B, )`, the index of the row in its group
        - group_id (:obj:`torch.LongTensor`): :math:`(B, )`, the group's number in its collect; -1 without a collector
        - collect_iter (:obj:`torch.LongTensor`): :math:`(B, )`, number of updates before the collect; -1 without a \
            collector
        - sampled_after (:obj:`torch.LongTensor`): :math:`(B, )`, number of optimizer steps before the row was \
            sampled; -1 if unknown
        - reward (:obj:`torch.FloatTensor`): :math:`(B, S)`, the reward of each step
        - reward_parts (:obj:`Dict[str, torch.FloatTensor]`): :math:`(B, )` each, NaN where a part does not apply
        - truncated (:obj:`torch.BoolTensor`): :math:`(B, )`, rows that a limit cut
        - failed (:obj:`torch.BoolTensor`): :math:`(B, )`, rows that could not be scored
        - equal (:obj:`torch.BoolTensor`): :math:`(B, )`, rows of groups without an advantage, see ``Advantage.equal``
        - filtered (:obj:`torch.BoolTensor`): :math:`(B, )`, rows of groups that the collector's filter excludes
        - prompts (:obj:`Optional[List[torch.LongTensor]]`): :math:`(L, )` each, B of them; for language models
        - anchor (:obj:`Optional[torch.LongTensor]`): :math:`(B, K)`, the state in which each turn is taken, as a \
            number within the group; -1 for a state of its own and after a row's last turn; for language models
        - obs (:obj:`Optional[Obs]`): :math:`(M, *)`, row by row; for other models
        - kept (:obj:`Optional[torch.LongTensor]`): :math:`(B, S, K)`, ids that sampling was restricted to
        - kept_words (:obj:`Optional[torch.IntTensor]`): :math:`(N, )`, the same in sets of any size, row by row, see \
            ``KeptSets``
        - kept_width (:obj:`Optional[torch.LongTensor]`): :math:`(B, S)`, number of words of each step
        - final_obs (:obj:`Optional[Obs]`): :math:`(B, *)`, the observation after a row's end
        - baseline (:obj:`Optional[torch.FloatTensor]`): :math:`(B, )`, the return of a greedy episode of the group
        - score_norm (:obj:`Optional[torch.FloatTensor]`): :math:`(B, S)`, see ``token_advantage``
        - value (:obj:`Optional[torch.FloatTensor]`): :math:`(B, S)`, the critic's values before the update
        - return_ (:obj:`Optional[torch.FloatTensor]`): :math:`(B, S)`, the critic's targets
        - adv (:obj:`Optional[torch.FloatTensor]`): :math:`(B, )` or :math:`(B, S)`, advantages
        - other_adv (:obj:`Optional[Dict[str, torch.FloatTensor]]`): as ``adv``, by other methods, for observers
        - logp_ref (:obj:`Optional[torch.FloatTensor]`): :math:`(B, S)`, log-probabilities under the reference
        - logp_first (:obj:`Optional[torch.FloatTensor]`): :math:`(B, S)`, log-probabilities that replace \
            ``logp_old`` in ratios if arithmetic is not float32
    """
    action: Tensor
    logp_old: Tensor
    weight: Tensor
    length: Tensor
    turn: Tensor
    group: Tensor
    row: Tensor
    group_id: Tensor
    collect_iter: Tensor
    sampled_after: Tensor
    reward: Tensor
    reward_parts: Dict[str, Tensor]
    truncated: Tensor
    failed: Tensor
    equal: Tensor
    filtered: Tensor
    prompts: Optional[List[Tensor]] = None
    anchor: Optional[Tensor] = None
    obs: Optional[Obs] = None
    kept: Optional[Tensor] = None
    kept_words: Optional[Tensor] = None
    kept_width: Optional[Tensor] = None
    final_obs: Optional[Obs] = None
    baseline: Optional[Tensor] = None
    score_norm: Optional[Tensor] = None
    value: Optional[Tensor] = None
    return_: Optional[Tensor] = None
    adv: Optional[Tensor] = None
    other_adv: Optional[Dict[str, Tensor]] = None
    logp_ref: Optional[Tensor] = None
    logp_first: Optional[Tensor] = None

    @classmethod
    def of(cls, samples: List[Dict[str, Any]]) -> 'Batch':
        """Concatenate the rows of groups from ``fold_group``, padded on the right to the longest."""
        sizes = torch.tensor([len(s['action']) for s in samples])

        def rows(key: str, value: float = 0) -> Tensor:
            longest = max(s[key].shape[1] for s in samples)
            pads = [(0, 0) * (s[key].dim() - 2) + (0, longest - s[key].shape[1]) for s in samples]
            return torch.cat([F.pad(s[key], pad, value=value) for s, pad in zip(samples, pads)])

        def each(key: str, default: Any) -> Tensor:
            return torch.tensor([s.get(key, default) for s in samples]).repeat_interleave(sizes)

        weight, kept = rows('weight'), None
        if 'kept' in samples[0]:
            kept = rows('kept', -1)
            # Where the policy sampled nothing, no id is kept, which would be an empty distribution. Keep one id.
            kept[..., 0] = torch.where(weight == 0, 0, kept[..., 0])
        has_prompts = 'prompt' in samples[0]
        return cls(
            action=rows('action'),
            logp_old=rows('logp_old'),
            weight=weight,
            length=torch.cat([s['length'] for s in samples]),
            turn=rows('turn', -1),
            group=torch.arange(len(samples)).repeat_interleave(sizes),
            row=torch.cat([torch.arange(size) for size in sizes]),
            group_id=each('group_id', -1),
            collect_iter=each('collect_iter', -1),
            sampled_after=each('sampled_after', -1),
            reward=rows('reward'),
            reward_parts={
                name: torch.cat([s['reward_parts'][name] for s in samples])
                for name in samples[0]['reward_parts']
            },
            truncated=torch.cat([s['truncated'] for s in samples]) != 0,
            failed=torch.cat([s['failed'] for s in samples]) != 0,
            equal=each('equal', False),
            filtered=each('filtered', False),
            prompts=[s['prompt'] for s in samples for _ in s['action']] if has_prompts else None,
            anchor=rows('anchor', -1) if has_prompts else None,
            obs=None if has_prompts else map_tensors(lambda *parts: torch.cat(parts), *(s['obs'] for s in samples)),
            final_obs=map_tensors(lambda *parts: torch.cat(parts), *(s['final_obs'] for s in samples))
            if 'final_obs' in samples[0] else None,
            baseline=each('baseline', 0.) if 'baseline' in samples[0] else None,
            kept=kept,
            kept_words=torch.cat([s['kept_words'] for s in samples]) if 'kept_words' in samples[0] else None,
            kept_width=rows('kept_width') if 'kept_words' in samples[0] else None,
        )

    def __len__(self) -> int:
        return len(self.weight)

    def take(self, rows: Tensor) -> 'Batch':
        """Select rows by their indices (N, ), and pad them to the longest of them."""
        if torch.equal(rows, torch.arange(len(self))):
            return self
        length = self.length.cpu()
        longest = max(length[rows].tolist(), default=0) or 1

        def of_rows(x: Tensor) -> Tensor:
            return x[rows] if x.dim() == 1 else x[rows, :longest]

        taken = {}
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if name == 'prompts' and value is not None:
                taken[name] = [value[row] for row in rows.tolist()]
            elif name == 'obs' and value is not None:
                of_steps = _ranges(length.cumsum(0)[rows] - length[rows], length[rows])
                taken[name] = map_tensors(lambda x: x[of_steps], value)
            elif name == 'kept_words' and value is not None:
                words = self.kept_width.cpu().sum(1)
                left = self.kept_width[:, :longest].cpu().sum(1)[rows]  # a masked row has lost its length
                taken[name] = value[_ranges(words.cumsum(0)[rows] - words[rows], left)]
            elif name == 'final_obs':
                taken[name] = map_tensors(lambda x: x[rows], value)
            else:
                taken[name] = map_tensors(of_rows, value)
        return Batch(**taken)

    def without(self, rows: Tensor) -> 'Batch':
        """Drop the rows of a mask (B, )."""
        return self.take((~rows).nonzero().squeeze(1))

    def turns(self) -> 'Batch':
        """The same rows with turns as steps, of at most T: the reward of a turn, as ``weight`` the number of the
        policy's tokens in it, and as ``length`` the number of turns. For comparisons of rows only."""
        at, most = self.turn.clamp(min=0), int(self.turn.max()) + 1 if len(self) else 0
        reward, weight = (x.new_zeros(len(x), most).scatter_add(1, at, x) for x in (self.reward, self.weight))  # (B, T)
        anchor = None if self.anchor is None else self.anchor[:, :most]
        return replace(self, reward=reward, weight=weight, length=self.turn.amax(1) + 1, anchor=anchor)

    def steps(self) -> 'Batch':
        """Make each of the M steps a row of one step and a separate group, so that mini-batches can be drawn from them.
        For batches with ``obs``."""
        counted = self.weight != 0  # (B, S)
        row, _ = counted.nonzero(as_tuple=True)  # (M, )

        def of_steps(x: Tensor) -> Tensor:
            return x[row] if x.dim() == 1 else x[counted].unsqueeze(1)

        whole = ('obs', 'final_obs')
        split = {f.name: map_tensors(of_steps, getattr(self, f.name)) for f in fields(self) if f.name not in whole}
        return Batch(**dict(split, obs=self.obs, group=torch.arange(len(row)), length=torch.ones_like(row)))

    def mini_batches(self, size: int, generator: torch.Generator) -> Iterator['Batch']:
        """Yield all groups once, ``size`` at a time, in random order."""
        for rows in self.divide(size, generator):
            yield self.take(rows)

    def divide(self, size: int, generator: Optional[torch.Generator] = None) -> Iterator[Tensor]:
        """Yield the row indices of ``size`` groups at a time, in random order if there is a generator."""
        _, index, count = self.group.unique(return_inverse=True, return_counts=True)
        by_group, start = index.argsort(stable=True), count.cumsum(0) - count
        order = torch.arange(len(count)) if generator is None else torch.randperm(len(count), generator=generator)
        for chosen in order.split(size) if len(count) > 0 else ():
            yield by_group[_ranges(start[chosen], count[chosen])]

    def parts(self, most_tokens: Optional[int], in_step: bool = False) -> Iterator[Tuple[Tensor, 'Batch']]:
        """Yield the rows that this process reads, as indices and as a batch, in micro-batches of at most
        ``most_tokens`` tokens, which limit memory, see ``split_rows``. ``in_step``: whether all processes need the same
        number of parts, since each part is read by all of them together. A process that has fewer adds parts with one
        row, whose weights are 0, and without indices."""
        own = split_rows(self, most_tokens, share_rows(self))
        for rows in own:
            yield rows, self.take(rows)
        missing = most_parts(self, most_tokens) - len(own) if in_step else 0
        if missing > 0:
            idle = self.take(torch.tensor([cheapest_row(self)]))
            for _ in range(missing):
                yield torch.tensor([], dtype=torch.long), replace(idle, weight=torch.zeros_like(idle.weight))

    def to(self, device: torch.device) -> 'Batch':
        """The batch on a device; prompts stay where they are."""
        moved = {f.name: getattr(self, f.name) for f in fields(self) if f.name != 'prompts'}
        return replace(self, **to_device({name: x for name, x in moved.items() if x is not None}, device))


def map_tensors(function: Callable, value: Any, *others: Any) -> Any:
    """Apply a function to a tensor, or to each tensor of a dict; None stays None."""
    if isinstance(value, dict):
        return {key: map_tensors(function, x, *(other[key] for other in others)) for key, x in value.items()}
    return None if value is None else function(value, *others)


def _ranges(start: Tensor, count: Tensor) -> Tensor:
    """The indices start, start + 1, ... of each range of ``count``, one range after the other."""
    before = count.cumsum(0) - count
    return torch.arange(int(count.sum())) + (start - before).repeat_interleave(count)
