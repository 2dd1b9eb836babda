"""Oversampling: groups that sample more rows than count, and end when enough of them have ended."""
from typing import Dict, List, Sequence, Tuple

import torch
from torch import Tensor

from ding_grpo.rl_utils.on_device import on_device


class EarlyStop:
    """The rows of a batch that count: of each group the first ``enough`` by (length, row), or, of an engine, the first
    that it has answered. The other rows of a group end as soon as this many have ended, so the longest rows of a batch
    are often not sampled to their end."""

    def __init__(self, keys: List[Tuple[int, int]], enough: int, device: torch.device) -> None:
        """``keys``: (group, row) of each of the B rows; all rows of a group are present. ``enough``: number of rows of
        a group that count, at least 1."""
        index: Dict[int, int] = {}
        self._group = on_device([index.setdefault(group, len(index)) for group, _ in keys], device)  # (B, )
        self._keys, self._groups, self._enough = keys, len(index), enough
        self._stopped = torch.zeros(len(keys), dtype=torch.bool, device=device)

    def after_token(self, live: Tensor, running: Tensor) -> Tensor:
        """Stop the rows of groups of which enough rows have ended. ``live`` are the rows in the shrinking batch, (b, );
        all others have ended. ``running``: whether each of them goes on after its last token. Returns the same without
        the rows that are stopped."""
        runs = torch.zeros_like(self._stopped).index_put((live, ), running)  # (B, )
        ended = (~runs).long()  # with those that were stopped, whose group is full already
        full = ended.new_zeros(self._groups).index_add(0, self._group, ended) >= self._enough  # (groups, )
        self._stopped |= runs & full[self._group]
        return running & ~full[self._group[live]]

    def after_row(self, ended: Sequence[int]) -> List[int]:
        """As ``after_token``, where rows end one by one: the rows to stop now, by all that have ended, as indices."""
        running = ~self._stopped
        running[ended] = False
        left = self.after_token(torch.arange(len(running), device=running.device), running)
        return (running & ~left).nonzero().squeeze(1).tolist()

    def counted(self, length: Tensor) -> List[bool]:
        """Whether each row counts, from their lengths (B, ), when all rows have ended or were stopped."""
        rows = zip(self._keys, self._stopped.tolist(), length.tolist())
        # a row that ended is before one that was stopped with the same length, which would have become longer
        order = sorted((group, stopped, n, row, line) for line, ((group, row), stopped, n) in enumerate(rows))
        counted, taken = [False] * len(order), dict.fromkeys((group for group, _ in self._keys), 0)
        for group, _, _, _, line in order:
            counted[line] = taken[group] < self._enough
            taken[group] += 1
        return counted
