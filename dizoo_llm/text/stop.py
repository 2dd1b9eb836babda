"""Where a turn of the policy ends."""
from typing import List, Sequence, Tuple

from transformers import PreTrainedTokenizerBase

from .tokenizer import decode_after


class Stop:
    """Finds the token that ends a turn: an end-of-sequence token, or the one that completes a stop string."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_ids: Tuple[int, ...], strings: Sequence[str]) -> None:
        self._tokenizer, self._end_ids, self.strings = tokenizer, frozenset(end_ids), tuple(strings)
        # A character has at most four tokens, one for each byte; the first one of the window may be cut.
        self._window = 4 * max(map(len, self.strings), default=0) + 4

    def ends(self, tokens: Sequence[int]) -> bool:
        """Whether the last token of a turn ends it; no earlier one does."""
        if tokens[-1] in self._end_ids:
            return True
        if not self.strings:
            return False
        text = decode_after(self._tokenizer, tokens[:-self._window], tokens[-self._window:])
        return any(string in text for string in self.strings)

    def first(self, before: List[int], tokens: Sequence[int]) -> int:
        """The number of ``tokens``, which continue a turn, up to the one that ends it; all if none does."""
        if not self.strings:
            return next((i for i, token in enumerate(tokens, 1) if token in self._end_ids), len(tokens))
        turn = [*before, *tokens]
        return next((i for i in range(1, len(tokens) + 1) if self.ends(turn[:len(before) + i])), len(tokens))
