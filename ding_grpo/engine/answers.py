"""Rows that servers have sampled."""
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

import torch

from ding_grpo.rollout import Rollout


class Answer(NamedTuple):
    """A sampled row of T tokens."""
    ids: List[int]
    logp: List[float]  # of the sampling distribution, in nats; NaN where the server's is
    top: List[List[int]]  # ids of the tokens that each was sampled from, if the request asked for them
    versions: List[str]  # of the weights that each was sampled with

    def then(self, rest: 'Answer') -> 'Answer':
        """With the tokens that continue it."""
        return Answer(*(own + others for own, others in zip(self, rest)))


NOTHING = Answer([], [], [], [])


def cut(answer: Answer, ends: Callable[[List[int]], bool]) -> Answer:
    """A row up to the first token with which it ends."""
    n = next((n for n in range(1, len(answer.ids)) if ends(answer.ids[:n])), len(answer.ids))
    return Answer(*(own[:n] for own in answer))


def rollout_of(
        answers: Sequence[Answer], top: int, greedy: bool, sampled_after: Optional[Dict[str, int]] = None
) -> Rollout:
    """Rows of servers as those of ``generate``; ``top``: the number of tokens that each was sampled from, 0 for all;
    ``sampled_after``: the number of optimizer steps before each version of the weights."""
    length = torch.tensor([len(answer.ids) for answer in answers])
    shape = len(answers), int(length.max())
    action, logp = torch.full(shape, -1, dtype=torch.long), torch.zeros(shape)
    kept = torch.full((*shape, top), -1, dtype=torch.long) if top else None
    after = None if sampled_after is None else torch.full(shape, -1, dtype=torch.long)
    for i, answer in enumerate(answers):
        n = len(answer.ids)
        action[i, :n] = torch.tensor(answer.ids, dtype=torch.long)
        values = torch.tensor(answer.logp)
        logp[i, :n] = values * 0 if greedy else values  # NaN stays NaN
        for t, ids in enumerate(answer.top if top else ()):
            ids = [answer.ids[t], *(j for j in ids if j != answer.ids[t])][:top]  # if ties give more, this one counts
            kept[i, t, :len(ids)] = torch.tensor(ids)
        if after is not None:
            after[i, :n] = torch.tensor([sampled_after[version] for version in answer.versions], dtype=torch.long)
    return Rollout(action, length, logp, kept, after)
