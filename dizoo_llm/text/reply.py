"""What a chat template adds after a turn of the policy: the turn's end, the reply, and the start of the next turn."""
from os.path import commonprefix
from typing import Any, Container, Dict, List, NamedTuple

from transformers import PreTrainedTokenizerBase

from ding_common import ConfigError
from dizoo_llm.base import Problem, Text

from .chat import MARK, apply_templates, conversation, marked, marked_chat
from .tokenizer import require_tokens

WRITTEN = dict(role='assistant', content='?')  # a turn of the policy in a conversation of which only the form matters


class Added(NamedTuple):
    """What follows a turn of the policy, as token ids."""
    ids: List[int]  # the end of the turn, the reply and the start of the next turn
    close: int  # how many of them end the turn, whether a reply follows or not
    last: List[int]  # what ends the last turn of a conversation in their place
    replaced: int  # how many tokens after ``close`` are only there because the turn is not the last one

    def written(self, turn: List[int], end_ids: Container[int], control: Container[int]) -> int:
        """How many of the tokens the policy has written itself at the end of its turn, or replaced by its own end."""
        close, closed = self.ids[:self.close], turn[-1] in end_ids
        for number in range(min(len(close), len(turn)), 0, -1):
            if turn[-number:] == close[:number] and (closed or close[0] in control):
                return number
        if not closed:
            return 0
        if self.ids[:1] == turn[-1:]:  # GLM's turn ends with the token that the next one begins with
            return 1
        ends = [i for i, token in enumerate(close, 1) if token == turn[-1]] or \
            [i for i, token in enumerate(close, 1) if token in end_ids]
        if ends:
            return ends[0]
        return self.close + self.replaced if self.last[:1] == turn[-1:] else 0


def added(
        tokenizer: PreTrainedTokenizerBase, text: Text, begun: List[Dict[str, str]], options: Dict[str, Any]
) -> Added:
    """
    What a template adds after a turn to a conversation that has ``begun`` before it and goes on with a text.
    Placeholders stand for all that was said before, and only what follows the turn is encoded, so templates may change
    earlier turns.
    """
    begun, messages = [*begun, WRITTEN], conversation(text)
    mark = MARK.format(len(begun) - 1)
    going = marked_chat(tokenizer, [*begun, *messages], True, options)
    end = going.index(mark) + len(mark)
    for i, message in enumerate(begun):
        if MARK.format(i) in going[end:]:
            raise ConfigError(
                f"env.tokenizer: its chat template moves the {message['role']} turn after later ones, so a reply "
                'cannot be appended. Put its text into the first user turn.'
            )
    before = tokenizer.encode(going[:end], add_special_tokens=False)
    ids, = apply_templates(tokenizer, [[*marked(begun), *messages]], True, options)
    if ids[:len(before)] != before:
        raise ConfigError(
            'env.tokenizer: the tokens of a turn depend on what its chat template puts after it, so a reply '
            f'cannot be appended: {going!r:.200}'
        )
    ids = require_tokens(tokenizer, ids[len(before):], Problem(text).text, lambda: going[end:])
    last = _after(tokenizer, marked_chat(tokenizer, begun, False, options), mark)
    close = len(commonprefix([ids, last]))
    replaced = 0
    if last[close:]:  # such as gpt-oss's <|return|> in place of <|end|>, or Phi-3's end of sequence after <|end|>
        opened = _after(tokenizer, marked_chat(tokenizer, begun, True, options), mark)
        first = next((i for i in before if i != tokenizer.bos_token_id), None)
        replaced = int(len(commonprefix([ids, opened])) > close and ids[close] != first)  # not the beginning of a turn
    return Added(ids, close, last[close:], replaced)


def _after(tokenizer: PreTrainedTokenizerBase, text: str, mark: str) -> List[int]:
    first = len(tokenizer.encode(text[:text.index(mark) + len(mark)], add_special_tokens=False))
    return tokenizer.encode(text, add_special_tokens=False)[first:]
