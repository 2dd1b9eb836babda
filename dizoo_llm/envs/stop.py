"""Where a turn of the policy ends."""
from typing import List, Sequence, Tuple

from transformers import PreTrainedTokenizerBase

from ding_common import ConfigError
from dizoo_llm.tokenizer import decode_after


class Stop:
    """
    Overview:
        Finds the token that ends a turn: an end-of-sequence token, or the one that completes a stop string.
    Interfaces:
        ``ends``, ``first``
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_ids: Tuple[int, ...], strings: Sequence[str]) -> None:
        """
        Arguments:
            - tokenizer (:obj:`PreTrainedTokenizerBase`): Decodes the tokens.
            - end_ids (:obj:`Tuple[int, ...]`): End-of-sequence tokens.
            - strings (:obj:`Sequence[str]`): Stop strings.
        Raises:
            - ConfigError: If a stop string is not a text of at least one character.
        """
        if isinstance(strings, str) or not all(isinstance(text, str) and text for text in strings):
            raise ConfigError(f'env.stop = {strings!r}: must be a list of texts of at least one character.')
        self._tokenizer, self._end_ids, self.strings = tokenizer, frozenset(end_ids), tuple(strings)
        # A character has at most four tokens, one for each byte; the first one of the window may be cut.
        self._window = 4 * max(map(len, self.strings), default=0) + 4

    def ends(self, tokens: Sequence[int]) -> bool:
        """
        Overview:
            Whether the last token of a turn ends it; no earlier one does.
        Arguments:
            - tokens (:obj:`Sequence[int]`): The tokens of the turn so far, at least one.
        """
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
