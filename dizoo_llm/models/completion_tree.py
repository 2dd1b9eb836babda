"""Completions of one prompt as a tree: they share their beginnings, and divide where the model is undecided."""
from typing import List, NamedTuple, Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ding_common import printable
from dizoo_llm.text.tokenizer import decode_after, end_ids

from .generation import next_tokens, plain_generate

APART = 8  # least number of tokens between two places


class Branch(NamedTuple):
    """A part of completions that all its branches begin with."""
    text: str
    logp: float  # of its tokens under the distribution from which they came, in nats
    parts: List['Branch']  # none: it ends here


class CompletionTree:
    """Samples trees. They divide into ``branches[0]`` at the prompt, and into ``branches[i]`` at the i-th place after
    it: before the first token whose distribution has an entropy of at least ``above`` nats, ``APART`` tokens after the
    last place or later. A place is found by what is before it, so that each completion is a sample of the model."""

    def __init__(
            self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, branches: Sequence[int], above: float,
            max_new_tokens: int, temperature: float
    ) -> None:
        self._model, self._tokenizer, self._ends = model, tokenizer, end_ids(tokenizer)
        self._branches, self._above, self._longest, self._temperature = branches, above, max_new_tokens, temperature

    def grow(self, prompt: List[int]) -> List[Branch]:
        rows = self._sample(prompt, self._branches[0], self._longest)
        return [self._divide(prompt, row, 1, self._longest) for row in rows]

    def _divide(self, before: List[int], row: List[int], level: int, room: int) -> Branch:
        """A completion of at most ``room`` tokens, with other ones from its first place on."""
        found = next_tokens(self._model, before, row, self._temperature, len(self._tokenizer))  # (S, V)
        entropy = torch.special.entr(found.exp()).sum(-1).tolist()
        places = range(APART, len(row)) if level < len(self._branches) else ()
        place = next((t for t in places if entropy[t] >= self._above), len(row))
        head, rest = row[:place], row[place:]
        parts = [rest, *self._sample(before + head, self._branches[level] - 1, room - place)] if rest else []
        parts = [self._divide(before + head, part, level + 1, room - place) for part in parts]
        text = decode_after(self._tokenizer, before, head[:-1] if head[-1] in self._ends else head)
        return Branch(text, found[range(len(head)), head].sum().item(), parts)

    def _sample(self, prompt: List[int], number: int, room: int) -> List[List[int]]:
        if number == 0:
            return []
        return plain_generate(self._model, [prompt] * number, room, self._ends, len(self._tokenizer), self._temperature)


def lines(branches: List[Branch], indent: str = '') -> List[str]:
    """A tree as text: a line for each part, with its log-probability."""
    found = []
    for i, branch in enumerate(branches, 1):
        text = printable(branch.text.strip(' ')).replace('\n', '\\n')
        found.append(f'{indent}+- {branch.logp:.2f} {text}')
        found += lines(branch.parts, indent + ('|  ' if i < len(branches) else '   '))
    return found
