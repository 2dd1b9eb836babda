"""Rows that have the same prompt and the same tokens so far are decoded once."""
from typing import NamedTuple, Optional

import torch
from torch import Tensor

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

    def keep(self, rows: Tensor) -> None:
        """Continue with the given rows only."""
        if self.merged:
            self.row = self.row[rows]  # lines that have no row leave with the next step
        else:
            self._decoding.keep(rows)

    def step(self, token: Tensor) -> None:
        """Append a token to each row, (b, )."""
        if self.merged:
            token = self._divide(token)
        self.logit = self._decoding.step(token)

    def _divide(self, token: Tensor) -> Tensor:
        """Make rows of a line that have sampled different tokens different lines; the token of each line."""
        vocabulary, before = self.logit.shape[1], torch.arange(len(self.logit), device=token.device)
        pair, row = torch.unique(self.row * vocabulary + token, return_inverse=True)
        self.merged = len(pair) <= MERGED * len(token)
        if self.merged:
            parent, token, self.row = pair // vocabulary, pair % vocabulary, row
        else:
            parent, self.row = self.row, None
        if not torch.equal(parent, before):
            self._decoding.keep(parent)
        return token
