"""Rows that have the same prompt and the same tokens so far are decoded once."""
from typing import List, NamedTuple, Optional

import torch
from torch import Tensor

from ding_grpo.rl_utils.on_device import on_device

MERGED = 0.5  # largest number of lines per row: with more of them, dividing lines costs more than it saves


class Lines:
    """The lines of a decoding, and the line of each row that still grows. The rows of a prompt begin as one line, which
    divides when its rows sample different tokens. Once there are more than ``MERGED`` lines per row, each row is a line
    of its own."""

    def __init__(self, model: object, prompts: NamedTuple, room: int, merge: bool) -> None:
        """``room``: maximum number of tokens that follow the longest prompt."""
        number, rows = len(prompts.ids), len(prompts.row)
        self.merged = merge and number <= MERGED * rows  # whether lines may have several rows
        self.row: Optional[Tensor] = None  # (b, ): the line of each row
        if self.merged:
            self.row = prompts.row
            prompts = prompts._replace(row=torch.arange(number, device=prompts.row.device))
        self._decoding = model.start(prompts, room)
        self.logit = self._decoding.logit  # (L, V): of each line's next token

    @property
    def first(self) -> Optional[Tensor]:
        """For each line the first of its rows, (L, ); None if each row is a line."""
        if not self.merged:
            return None
        rows = torch.arange(len(self.row), device=self.row.device)
        return rows.new_full((len(self.logit), ), len(rows)).scatter_reduce(0, self.row, rows, 'amin')

    def of_rows(self, x: Optional[Tensor]) -> Optional[Tensor]:
        """Of each line, (L, *), to that of each row, (b, *)."""
        return x if x is None or not self.merged else x[self.row]

    def staying(self, token: Tensor, running: Tensor) -> List[int]:
        """The rows that go on after their next token, given these (b, ) each. Of what a token computes, a GPU sends
        only this to the CPU, and once: what it is and where rows are while they share lines."""
        runs, *self._said = torch.stack([running, token, self.row] if self.merged else [running]).tolist()
        return [row for row, goes_on in enumerate(runs) if goes_on]

    def keep(self, rows: List[int]) -> None:
        """Continue with the given rows only, between ``staying`` and ``step``."""
        if self.merged:  # lines that have no row leave with the next step
            self._said = [[x[row] for row in rows] for x in self._said]
        else:
            self._decoding.keep(torch.tensor(rows))

    def step(self, token: Tensor) -> None:
        """Append a token to each row, (b, )."""
        if self.merged:
            token = self._divide(token)
        self.logit = self._decoding.step(token)

    def _divide(self, token: Tensor) -> Tensor:
        """Make rows of a line that have sampled different tokens different lines; the token of each line."""
        vocabulary = self.logit.shape[1]
        tokens, parent = map(torch.tensor, self._said)
        pair, row = torch.unique(parent * vocabulary + tokens, return_inverse=True)
        self.merged, self.row = len(pair) <= MERGED * len(token), None
        if self.merged:
            parent = pair // vocabulary
            self.row, token = (on_device(x, token.device) for x in (row, pair % vocabulary))
        if not torch.equal(parent, torch.arange(len(self.logit))):
            self._decoding.keep(parent)
        return token
