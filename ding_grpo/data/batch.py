"""The batch that GRPO learns from: the rows of whole groups."""
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Union

import torch
from torch import Tensor
from torch.nn import functional as F

from ding_common import parallel
from ding_grpo.rl_utils.on_device import on_device

from .micro_batch import cheapest_row, most_parts, share_rows, split_rows

Obs = Union[Tensor, Dict[str, Tensor]]
# How the fields of groups become those of a batch: padded to the longest row by a value, joined row by row, or one
# value for all rows of a group, with a default.
_PADDED = dict(
    action=0, logp_old=0, weight=0, turn=-1, reward=0, anchor=-1, kept=-1, kept_width=0, sampled_after=-1, leader=-1
)
_JOINED = ('length', 'reward_parts', 'obs', 'final_obs', 'kept_words')
_OF_GROUP = dict(problem=-1, group_id=-1, collect_iter=-1, sampled_after=-1, equal=False, filtered=False)


@dataclass
class Batch:
    """B rows, each a trajectory of one of P groups. A step is a token of a completion, or a step of another
    environment. S is the number of steps of the longest row, M the number of all steps with a weight."""
    action: Tensor  # (B, S) int64, or floats (B, S, N) for continuous actions
    logp_old: Tensor  # (B, S), log-probabilities from the sampler, in nats
    weight: Tensor  # (B, S), 1 on steps of the policy, 0 on tokens of the environment and after a row's end
    length: Tensor  # (B, ), number of steps of the row, including tokens of the environment
    turn: Tensor  # (B, S), number of each step's turn, -1 after a row's end; a reply belongs to the turn before it
    group: Tensor  # (B, ), index of the row's group in the batch
    row: Tensor  # (B, ), index of the row in its group
    group_id: Tensor  # (B, ), the group's number in its collect; -1 without a collector
    collect_iter: Tensor  # (B, ), number of updates before the collect; -1 without a collector
    # (B, ), number of optimizer steps before the row was sampled; -1 if unknown. (B, S), those before each token, where
    # weights change while rows are sampled
    sampled_after: Tensor
    reward: Tensor  # (B, S), reward of each step
    reward_parts: Dict[str, Tensor]  # (B, ) each, NaN where a part does not apply
    truncated: Tensor  # (B, ) bool, rows that a limit cut
    failed: Tensor  # (B, ) bool, rows that could not be scored
    equal: Tensor  # (B, ) bool, rows of groups without an advantage, see ``Advantage.equal``
    filtered: Tensor  # (B, ) bool, rows of groups that the collector's filter excludes
    prompts: Optional[List[Tensor]] = None  # (L, ) each, B of them; for language models
    context: Optional[List[Optional[Tensor]]] = None  # the same, of a policy that teaches itself; None for no context
    problem: Optional[Tensor] = None  # (B, ), number of the group's problem, of tasks in text; -1 if unknown
    # (B, ), number of the row's episode in its group, where episodes have several rows, see ``fold_group``
    episode: Optional[Tensor] = None
    # (B, K), for language models: the state in which each turn is taken, as a number within the group; -1 for a state
    # of its own and after a row's last turn
    anchor: Optional[Tensor] = None
    leader: Optional[Tensor] = None  # (B, S), of groups that are trees, see ``tree_advantage``; -1 after a row's end
    obs: Optional[Obs] = None  # (M, *), row by row; for other models
    kept: Optional[Tensor] = None  # (B, S, K), ids that sampling was restricted to
    kept_words: Optional[Tensor] = None  # (N, ) int32, the same in sets of any size, row by row, see ``KeptSets``
    kept_width: Optional[Tensor] = None  # (B, S), number of words of each step
    final_obs: Optional[Obs] = None  # (B, *), the observation after a row's end
    baseline: Optional[Tensor] = None  # (B, ), return of a greedy episode of the group
    score_norm: Optional[Tensor] = None  # (B, S), see ``token_advantage``
    value: Optional[Tensor] = None  # (B, S), the critic's values before the update
    return_: Optional[Tensor] = None  # (B, S), the critic's targets
    adv: Optional[Tensor] = None  # (B, ) or (B, S), advantages
    other_adv: Optional[Dict[str, Tensor]] = None  # as ``adv``, by other methods, for observers
    logp_ref: Optional[Tensor] = None  # (B, S), log-probabilities under the reference
    logp_first: Optional[Tensor] = None  # (B, S), replace ``logp_old`` in ratios if arithmetic is not float32

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

        def joined(key: str) -> Any:
            return map_tensors(lambda *parts: torch.cat(parts), *(s[key] for s in samples))

        given = samples[0]
        found = {key: rows(key, value) for key, value in _PADDED.items() if isinstance(given.get(key), Tensor)}
        found.update((key, joined(key)) for key in _JOINED if key in given)
        found.update((key, each(key, value)) for key, value in _OF_GROUP.items() if key not in found)
        if 'kept' in given:  # Where the policy sampled nothing, no id is kept: an empty distribution. Keep one id.
            found['kept'][..., 0] = torch.where(found['weight'] == 0, 0, found['kept'][..., 0])
        return cls(
            **found,
            group=torch.arange(len(samples)).repeat_interleave(sizes),
            row=torch.cat([torch.arange(size) for size in sizes]),
            truncated=joined('truncated') != 0,
            failed=joined('failed') != 0,
            prompts=[p for s in samples for p in prompts_of(s)] if 'prompt' in given else None,
            episode=joined('episode') if 'episode' in given else None,
            baseline=each('baseline', 0.) if 'baseline' in given else None,
        )

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def episodes(self) -> int:
        """Number of episodes, of which each may have several rows."""
        return len(self) if self.episode is None else torch.stack([self.group, self.episode]).unique(dim=1).shape[1]

    def take(self, rows: Tensor) -> 'Batch':
        """Select rows by their indices (N, ), and pad them to the longest of them."""
        if torch.equal(rows, torch.arange(len(self))):
            return self
        length = self.length.cpu()
        longest = max(length[rows].tolist(), default=0) or 1
        places = partial(on_device, device=self.weight.device)
        at = places(rows)

        def of_rows(x: Tensor) -> Tensor:
            return x[at] if x.dim() == 1 else x[at, :longest]

        taken = {}
        for name, value in vars(self).items():
            if value is None:
                continue
            if name in ('prompts', 'context'):
                taken[name] = [value[row] for row in rows.tolist()]
            elif name == 'obs':
                of_steps = places(_ranges(length.cumsum(0)[rows] - length[rows], length[rows]))
                taken[name] = map_tensors(lambda x: x[of_steps], value)
            elif name == 'kept_words':
                words = self.kept_width.cpu().sum(1)
                left = self.kept_width[:, :longest].cpu().sum(1)[rows]  # a masked row has lost its length
                taken[name] = value[places(_ranges(words.cumsum(0)[rows] - words[rows], left))]
            else:
                taken[name] = map_tensors(of_rows if name != 'final_obs' else lambda x: x[at], value)
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

        split = {name: map_tensors(of_steps, x) for name, x in vars(self).items() if name not in ('obs', 'final_obs')}
        return Batch(**dict(split, obs=self.obs, group=torch.arange(len(row)), length=torch.ones_like(row)))

    def mini_batches(self, size: int, generator: torch.Generator) -> Iterator['Batch']:
        """Yield all groups once, ``size`` at a time, in random order."""
        for rows in self.divide(size, generator):
            yield self.take(rows)

    def divide(self, size: int, generator: Optional[torch.Generator] = None) -> Iterator[Tensor]:
        """Yield the row indices of ``size`` groups at a time, in random order if there is a generator. Without one, a
        batch of at most so many groups keeps the order of its rows, on which their division into parts depends."""
        _, index, count = self.group.unique(return_inverse=True, return_counts=True)
        if generator is None and 0 < len(count) <= size:
            yield torch.arange(len(self))
            return
        by_group, start = index.argsort(stable=True), count.cumsum(0) - count
        order = torch.arange(len(count)) if generator is None else torch.randperm(len(count), generator=generator)
        for chosen in order.split(size) if len(count) > 0 else ():
            yield by_group[_ranges(start[chosen], count[chosen])]

    def parts(self, most_tokens: Union[int, str, None], in_step: bool = False) -> Iterator[Tuple[Tensor, 'Batch']]:
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

    def is_divided(self, most_tokens: Union[int, str, None]) -> bool:
        """Whether the batch is read in several parts, or by several processes."""
        return parallel.world_size() > 1 or most_tokens is not None and len(split_rows(self, most_tokens)) > 1

    def to(self, device: torch.device) -> 'Batch':
        """The batch on a device, itself if it is there; prompts and contexts stay where they are."""
        if self.weight.device == device:
            return self
        kept = ('prompts', 'context')
        moved = {name: x for name, x in vars(self).items() if x is not None and name not in kept}
        return replace(self, **map_tensors(lambda x: on_device(x, device), moved))


def prompts_of(sample: Dict[str, Any]) -> List[Tensor]:
    """The prompt of each row of a group, (L, ) each."""
    return sample['prompts'] if 'prompts' in sample else [sample['prompt']] * len(sample['action'])


def map_tensors(function: Callable, value: Any, *others: Any) -> Any:
    """Apply a function to a tensor, or to each tensor of a dict; None stays None."""
    if isinstance(value, dict):
        return {key: map_tensors(function, x, *(other[key] for other in others)) for key, x in value.items()}
    return None if value is None else function(value, *others)


def _ranges(start: Tensor, count: Tensor) -> Tensor:
    """The indices start, start + 1, ... of each range of ``count``, one range after the other."""
    before = count.cumsum(0) - count
    return torch.arange(int(count.sum())) + (start - before).repeat_interleave(count)
