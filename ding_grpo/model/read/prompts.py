"""The prompts of a batch, and their common beginnings, such as a system message and worked examples."""
import os
from itertools import accumulate, chain
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from ding_grpo.rl_utils.on_device import on_device

# Number of tokens whose reading takes as long as the attention to one more segment above others.
SEGMENT = 64


class PromptBatch(NamedTuple):
    """The distinct prompts of a batch of rows, padded on the left, and the prompt that each row continues."""
    ids: Tensor  # (P, L), P distinct prompts of at most L tokens
    mask: Tensor  # (P, L), 1 on tokens, 0 on padding
    row: Tensor  # (B, ), index of each row's prompt
    tokens: Optional[List[List[int]]] = None  # ``ids`` on the host, without padding; None: to be read from there

    @classmethod
    def of(cls, prompts: List[Tensor], device: torch.device) -> 'PromptBatch':
        """Find the distinct prompts among those of all rows, (L_i, ) each, so that each is read once for all rows that
        continue it."""
        index: Dict[Tuple[int, ...], int] = {}
        row = [index.setdefault(tuple(p.tolist()), len(index)) for p in prompts]
        length = max(len(p) for p in index)
        ids = [(0, ) * (length - len(p)) + p for p in index]  # (P, L)
        mask = [[0] * (length - len(p)) + [1] * len(p) for p in index]  # (P, L)
        return cls(*(on_device(x, device) for x in (ids, mask, row)), list(map(list, index)))

    @property
    def length(self) -> Tensor:
        """Number of tokens of each prompt, (P, )."""
        return self.mask.sum(1)

    def prompt(self, number: int) -> Tensor:
        """The tokens of one prompt, from 0 to P - 1."""
        return self.ids[number, self.mask[number].bool()]


class PromptTree(NamedTuple):
    """
    C common beginnings, what follows them in P prompts, and B rows that continue the prompts. A beginning is read once
    for its prompts, as a prompt is read once for its rows. Prompts with the same beginning are adjacent. Either every
    prompt has a beginning, or there are none (C = 0). The packed row starts with all beginnings, and goes on with the
    remaining tokens of all prompts, of which each has at least one:

        common     c0 c0 c0 | c1
        remaining  p0 p0 | p1 | p2 p2 p2     (prompts 0 and 1 have the beginning 0, prompt 2 has 1)
    """
    common: List[int]  # (C, ): number of tokens of each beginning
    remaining: List[int]  # (P, ): number of further tokens of each prompt
    beginning: List[int]  # (P, ): the beginning of each prompt; 0 if there are none
    ids: Tensor  # (N, ), tokens of all beginnings and prompts
    position: Tensor  # (N, ), their positions in the prompts
    row: Tensor  # (B, ), the prompt that each row continues

    @classmethod
    def of(cls, prompts: PromptBatch, least: int = SEGMENT) -> 'PromptTree':
        """Find the beginnings that save the most tokens, each at least ``least``. The order of prompts depends on their
        tokens alone, so that the same prompts are read with the same rounding whatever their order in the batch."""
        tokens = prompts.tokens
        if tokens is None:
            tokens = [row[-n:] for row, n in zip(prompts.ids.tolist(), prompts.length.tolist())]
        order = sorted(range(len(tokens)), key=tokens.__getitem__)
        tokens = [tokens[i] for i in order]
        spans = common_spans(tokens, least) or [(0, len(tokens), 0)]
        common = [length for _, _, length in spans if length > 0]
        beginning = [number for number, (begin, end, _) in enumerate(spans) for _ in range(begin, end)]
        skipped = [spans[number][2] for number in beginning]
        ids = [tokens[begin][:length] for begin, _, length in spans] + [x[n:] for x, n in zip(tokens, skipped)]
        first = [0] * len(spans) + skipped
        position = [range(start, start + len(segment)) for start, segment in zip(first, ids)]
        rank, device = torch.tensor(order).argsort(), prompts.ids.device
        return cls(
            common,
            [len(x) - n for x, n in zip(tokens, skipped)],
            beginning,
            on_device(list(chain(*ids)), device),
            on_device(list(chain(*position)), device),
            on_device(rank, device)[prompts.row],
        )

    @property
    def length(self) -> List[int]:
        """Number of tokens of each prompt, (P, )."""
        skipped = self.common or [0]
        return [skipped[number] + n for number, n in zip(self.beginning, self.remaining)]

    @property
    def segments(self) -> List[Tuple[int, int]]:
        """First token in the packed row, and number of tokens, of each beginning and then of each prompt."""
        lengths = [*self.common, *self.remaining]
        return list(zip(accumulate(lengths, initial=0), lengths))

    @property
    def last(self) -> Tensor:
        """Place of each prompt's last token in the packed row, (P, )."""
        ends = [start + n - 1 for start, n in self.segments[len(self.common):]]
        return on_device(ends, self.row.device)


def common_spans(prompts: Sequence[List[int]], least: int) -> List[Tuple[int, int, int]]:
    """Divide sorted, distinct prompts into spans (begin, end, number of common tokens) that save the most tokens. Empty
    if none saves more than ``least`` tokens, or if a prompt has a single token."""
    number = len(prompts)
    if number < 2 or min(map(len, prompts)) < 2:
        return []
    # common tokens of neighbours; each prompt keeps a token of its own, whose hidden state predicts the completion
    pairs = zip(prompts, prompts[1:])
    shared = np.array([min(len(os.path.commonprefix([a, b])), len(a) - 1, len(b) - 1) for a, b in pairs])
    saved, start = np.zeros(number + 1), np.zeros(number + 1, dtype=int)  # of the first prompts
    for end in range(1, number + 1):
        # of spans that begin at 0, 1, ..., end - 1; the last is a prompt alone
        common = np.minimum.accumulate(shared[:end - 1][::-1])[::-1]
        gain = np.append(np.where(common > 0, np.arange(end - 1, 0, -1) * common - least, -1), 0)
        start[end] = int(np.argmax(saved[:end] + gain))
        saved[end] = saved[start[end]] + gain[start[end]]
    if saved[number] <= 0:
        return []
    spans, end = [], number
    while end > 0:
        begin = int(start[end])
        spans.append((begin, end, int(shared[begin:end - 1].min()) if end - begin > 1 else 1))
        end = begin
    return spans[::-1]
