"""Token ids of prompts, answers and replies. Each text is encoded once; what the policy writes never is."""
import json
from functools import lru_cache
from typing import (Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union)

from transformers import PreTrainedTokenizerBase

from ding_common import MOST, ConfigError, TaskError, describe
from dizoo_llm.chat import (
    MARK, apply_template, check_options, conversation, encode_prompt, encode_prompts, in_chat, marked, marked_chat
)
from dizoo_llm.tasks import MultiTurnTask, Problem, Task
from dizoo_llm.template import TemplateFailure
from dizoo_llm.tokenizer import ENCODING, decode_after, encode_text, end_ids

from .tokenizers import create_tokenizer

MOST_FOUND = 32_768  # prompt tokens at most when max_prompt_length is None: it sets the length of observations
MOST_ENCODED = 1024  # texts whose tokens are cached, since all environments of a group start with the same one
_ENCODED: Dict[Tuple, Tuple] = {}  # keeps a reference to the tokenizer, so that its id is not reused
_CALL = '<tool_call>{"name": "...", "arguments": {...}}</tool_call>'

Text = Union[str, List[Dict[str, str]]]
_WRITTEN = dict(role='assistant', content='?')  # a turn of the policy in a conversation of which only the form matters


class Added(NamedTuple):
    """
    Overview:
        What follows a turn of the policy, as token ids.
    """
    ids: List[int]  # the end of the turn, the reply and the start of the next turn
    close: int  # how many of them end the turn, whether a reply follows or not
    last: List[int]  # what ends the last turn of a conversation in their place
    replaced: int  # how many tokens after ``close`` are only there because the turn is not the last one


class Encoder:
    """
    Overview:
        The texts of a task as token ids.
    Interfaces:
        ``prompt``, ``prompts``, ``answer``, ``reply``, ``decode``
    Property:
        - tokenizer (:obj:`PreTrainedTokenizerBase`): The tokenizer.
        - end_ids (:obj:`Tuple[int, ...]`): Every token that ends a turn.
        - max_prompt_length (:obj:`Optional[int]`): Maximum prompt length in tokens. ``fitting_problems`` replaces None.
    """

    def __init__(
            self, task: Task, tokenizer: Optional[Dict], max_prompt_length: Optional[int], max_new_tokens: int,
            chat: Optional[bool], system_prompt: Optional[str], chat_options: Dict[str, Any]
    ) -> None:
        """
        Arguments:
            - task (:obj:`Task`): The task.
            - tokenizer, max_prompt_length, max_new_tokens, chat, system_prompt, chat_options: See ``TokenEnv``.
        """
        self._task = type(task).__name__
        self.tokenizer = create_tokenizer(tokenizer, task)
        self.end_ids = end_ids(self.tokenizer)
        chats = self.tokenizer.chat_template is not None and chat is not False
        if chats:
            check_options(self.tokenizer, chat_options)
        if chats and task.tools:
            system_prompt, chat_options = _offer(self.tokenizer, task.tools, system_prompt, chat_options)
        self._chat = (chat, system_prompt, chat_options)
        self._max_new_tokens = max_new_tokens
        self.max_prompt_length = max_prompt_length
        if chat is False:  # before anything is sampled
            self._encode(task.checked_problem(0))
        if chats and isinstance(task, MultiTurnTask):  # also
            problem = task.checked_problem(0)
            self._encode(problem)
            begun = conversation(problem.prompt, system_prompt)
            self._encode_reply([dict(begun[-1], role='tool' if task.tools else 'user')], begun)

    def prompt(self, problem: Problem) -> List[int]:
        """
        Overview:
            Token ids of a problem's prompt.
        Raises:
            - ConfigError: If the tokenizer has no token for a part of it.
            - TaskError: If the chat template rejects it, or the prompt is empty or too long.
        """
        ids = self._once('prompt', problem.prompt, lambda: self._encode(problem))
        self.check_length(ids, problem)
        return list(ids)

    def _encode(self, problem: Problem) -> List[int]:
        try:
            ids = encode_prompt(self.tokenizer, problem.prompt, *self._chat)
        except Exception as error:  # a chat template or a tokenizer may raise anything for a problem's messages
            if isinstance(error, ConfigError) and not isinstance(error, TemplateFailure):
                raise
            told = error.reason if isinstance(error, TemplateFailure) else error
            raise TaskError(f'a prompt could not be encoded: {told}; problem: {problem.text!r:.200}') from error
        return self._known(ids, problem.text, lambda: self._around(problem.prompt))

    def check_length(self, ids: List[int], problem: Problem) -> None:
        """Raise a ``TaskError`` if a prompt is empty or too long."""
        if not 0 < len(ids) <= self.limit:
            told = f'env.max_prompt_length = {self.max_prompt_length}'
            allowed = told if self.max_prompt_length is not None else f'{MOST_FOUND} with {told}'
            raise TaskError(
                f'{self._task}: a prompt has {len(ids)} tokens, must have 1 to {allowed}; change the limit or the '
                f'prompt: {problem.text!r:.200}'
            )

    @property
    def limit(self) -> int:
        """Number of tokens that a prompt may have."""
        return MOST_FOUND if self.max_prompt_length is None else self.max_prompt_length

    def prompts(self, problems: List[Problem]) -> List[List[int]]:
        """Token ids of several prompts, which may be too long. Otherwise as ``prompt``, and faster."""
        if not problems:
            return []
        with ENCODING:
            try:
                rows = encode_prompts(self.tokenizer, [problem.prompt for problem in problems], *self._chat)
            except Exception:  # of one of them, which then raises an error that names it
                rows = map(self._encode, problems)
            return [self._known(ids, p.text, lambda p=p: self._around(p.prompt)) for ids, p in zip(rows, problems)]

    def most_tokens(self, problem: Problem) -> float:
        """Number of tokens that a prompt cannot exceed: a token of ASCII text has at least one character."""
        messages = problem.messages
        if not all(message['content'].isascii() and message['content'] and len(message) == 2 for message in messages):
            return float('inf')
        empty = '?' if isinstance(problem.prompt, str) else [dict(message, content='?') for message in messages]
        around = self._once('around', empty, lambda: encode_prompt(self.tokenizer, empty, *self._chat))
        return sum(len(message['content']) for message in messages) + 2 * len(around)

    def answer(self, text: str) -> List[int]:
        """
        Overview:
            Token ids of a turn, including the end-of-sequence token.
        Raises:
            - ConfigError: If the tokenizer has no token for a part of it, or it is longer than ``max_new_tokens``.
        """
        with ENCODING:
            ids = self._known(encode_text(self.tokenizer, text), text)
        if len(ids) + 1 > self._max_new_tokens:
            raise ConfigError(
                f'env.max_new_tokens = {self._max_new_tokens}: the answer {text!r:.200} has {len(ids) + 1} tokens, '
                'including the end-of-sequence token. Raise it.'
            )
        return ids + [self.tokenizer.eos_token_id]

    def reply(self,
              problem: Problem,
              text: Text,
              turn: List[int],
              earlier: Sequence[Text] = (),
              most: int = MOST) -> Optional[List[int]]:
        """
        Overview:
            Token ids that follow a turn of the policy: the end of the turn as far as the policy has not written it, \
            the reply, and the start of the next turn. In a chat, the template renders a conversation with \
            placeholders for all that was said before, and only what follows the turn is encoded. Templates that \
            change earlier turns do no harm.
        Arguments:
            - problem (:obj:`Problem`): The problem of the episode.
            - text (:obj:`Union[str, List[Dict[str, str]]]`): The reply, text or chat messages.
            - turn (:obj:`List[int]`): The policy's tokens.
            - earlier (:obj:`Sequence[Union[str, List[Dict[str, str]]]]`): The replies to the turns before it.
            - most (:obj:`int`): Maximum number of token ids.
        Returns:
            - ids (:obj:`Optional[List[int]]`): None if they are more. A text longer than ``most_chars`` is not encoded.
        Raises:
            - TaskError: If the tokenizer has no token for a part of the reply, or the template rejects it.
        """
        contents = [text] if isinstance(text, str) else [message['content'] for message in text]
        if sum(map(len, contents)) > self.most_chars(most):
            return None
        try:
            if in_chat(self.tokenizer, problem.prompt, self._chat[0]):
                begun = [dict(message, content='?') for message in conversation(problem.prompt, self._chat[1])]
                for each in earlier:
                    begun += [_WRITTEN, *(dict(message, content='?') for message in conversation(each))]
                added = self._once('reply', (text, begun), lambda: self._encode_reply(text, begun))
                ids = added.ids[self._written(turn, added):]
            else:
                ids = self._once('text', text, lambda: self._encode_plain(text))
                ids = [*[self.tokenizer.eos_token_id] * (turn[-1] not in self.end_ids), *ids]
        except ConfigError as error:
            raise TaskError(f'{self._task}: a reply could not be encoded: {error}') from error
        except Exception as error:  # a tokenizer may raise anything for half of a character
            raise TaskError(
                f'{self._task}: a reply could not be encoded: {describe(error)}; reply: {text!r:.200}'
            ) from error
        return ids if len(ids) <= most else None

    def most_chars(self, tokens: int) -> int:
        """More characters than this have more than so many tokens."""
        return tokens * _longest_token(self.tokenizer, len(self.tokenizer))

    def decode(self, ids: Sequence[int], before: Sequence[int] = ()) -> str:
        """The text of tokens that follow others, with every special token in it."""
        return decode_after(self.tokenizer, before, ids)

    def _encode_plain(self, text: Text) -> List[int]:
        """The tokens of a reply where no template is applied."""
        shown = Problem(text).text
        if not isinstance(text, str):
            if any(message['role'] != 'tool' for message in text):
                raise ConfigError(f'env.chat: the reply {shown!r:.200} has chat messages, and no template is applied.')
            text = '\n'.join(message['content'] for message in text)
        return self._known(encode_text(self.tokenizer, text), shown)

    def _encode_reply(self, text: Text, begun: List[Dict[str, str]]) -> Added:
        """What a template adds after a turn, to a conversation that has ``begun`` before it and goes on with a text."""
        begun, messages, options = [*begun, _WRITTEN], conversation(text), self._chat[2]
        mark = MARK.format(len(begun) - 1)
        going = marked_chat(self.tokenizer, [*begun, *messages], True, options)
        end = going.index(mark) + len(mark)
        for i, message in enumerate(begun):
            if MARK.format(i) in going[end:]:
                raise ConfigError(
                    f"env.tokenizer: its chat template moves the {message['role']} turn after later ones, so a reply "
                    'cannot be appended. Put its text into the first user turn.'
                )
        before = self._ids(going[:end])
        ids = apply_template(self.tokenizer, [*marked(begun), *messages], True, options)
        if ids[:len(before)] != before:
            raise ConfigError(
                'env.tokenizer: the tokens of a turn depend on what its chat template puts after it, so a reply '
                f'cannot be appended: {going!r:.200}'
            )
        ids = self._known(ids[len(before):], Problem(text).text, lambda: going[end:])
        last = self._after(marked_chat(self.tokenizer, begun, False, options), mark)
        close = _common(ids, last)
        replaced = 0
        if last[close:]:  # such as gpt-oss's <|return|> in place of <|end|>, or Phi-3's end of sequence after <|end|>
            opened = self._after(marked_chat(self.tokenizer, begun, True, options), mark)
            first = next((i for i in before if i != self.tokenizer.bos_token_id), None)
            replaced = int(_common(ids, opened) > close and ids[close] != first)  # not the beginning of a turn
        return Added(ids, close, last[close:], replaced)

    def _after(self, text: str, mark: str) -> List[int]:
        return self._ids(text)[len(self._ids(text[:text.index(mark) + len(mark)])):]

    def _written(self, turn: List[int], added: Added) -> int:
        """How many of the tokens after a turn the policy has written itself, or has replaced by its own end."""
        close, closed = added.ids[:added.close], turn[-1] in self.end_ids
        for number in range(min(len(close), len(turn)), 0, -1):
            if turn[-number:] == close[:number] and (closed or close[0] in self.tokenizer.added_tokens_decoder):
                return number
        if not closed:
            return 0
        if added.ids[:1] == turn[-1:]:  # GLM's turn ends with the token that the next one begins with
            return 1
        ends = [i for i, token in enumerate(close, 1) if token == turn[-1]] or \
            [i for i, token in enumerate(close, 1) if token in self.end_ids]
        if ends:
            return ends[0]
        return added.close + added.replaced if added.last[:1] == turn[-1:] else 0

    def _ids(self, text: str) -> List[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _once(self, kind: str, text: Text, encode: Callable) -> Any:
        key = (id(self.tokenizer), kind, repr(text), repr(self._chat))
        with ENCODING:
            if key not in _ENCODED:
                encoded = encode()
                if len(_ENCODED) >= MOST_ENCODED:
                    _ENCODED.pop(next(iter(_ENCODED)))
                _ENCODED[key] = (self.tokenizer, encoded)
            return _ENCODED[key][1]

    def _around(self, prompt: Text) -> str:
        """What template or tokenizer put around a prompt's texts."""
        chat, system_prompt, options = self._chat
        if in_chat(self.tokenizer, prompt, chat):
            return marked_chat(self.tokenizer, conversation(prompt, system_prompt), True, options)
        return self.tokenizer.decode(self.tokenizer.encode(''), skip_special_tokens=False)

    def _known(self, ids: List[int], text: str, around: Callable[[], str] = str) -> List[int]:
        """Require tokens for a text. The unknown token may also be the first or the last of what is put around it."""
        unknown = self.tokenizer.unk_token_id
        found = 0 if unknown is None else ids.count(unknown)
        if found > 0 and found > around().count(self.tokenizer.unk_token):
            lacking = {c for c in {*text.split(), *text} if unknown in self._ids(c)}
            some = sorted(c for c in lacking if len(c) == 1) or sorted(lacking) or [self.tokenizer.unk_token]
            raise ConfigError(f'env.tokenizer: it has no token for {some[:5]!r:.80} in {text!r:.200}.')
        return ids


def _common(first: List[int], second: List[int]) -> int:
    """Length of the common beginning."""
    return next((i for i, pair in enumerate(zip(first, second)) if pair[0] != pair[1]), min(len(first), len(second)))


@lru_cache(maxsize=8)
def _longest_token(tokenizer: PreTrainedTokenizerBase, size: int) -> int:
    """In characters. ``size`` is part of the cache key: it grows when tokens are added."""
    return max(map(len, tokenizer.get_vocab())) + 1  # a tokenizer of words does not encode the space between two


def _offer(
        tokenizer: PreTrainedTokenizerBase, tools: List[Dict[str, Any]], system_prompt: Optional[str],
        options: Dict[str, Any]
) -> Tuple[Optional[str], Dict[str, Any]]:
    """System prompt and variables of a chat template that describe functions: its own description if it has one."""
    own = {'tools': tools, **options}
    plain, shown = (marked_chat(tokenizer, conversation('?'), True, variables) for variables in (options, own))
    if all(shown.count(tool['function']['name']) > plain.count(tool['function']['name']) for tool in tools):
        return system_prompt, own
    described = '\n'.join(json.dumps(tool['function']) for tool in tools)
    offered = (
        f'You may call functions. To call one, write {_CALL} and end your turn; the result follows.\nFunctions:\n'
        f'{described}'
    )
    return offered if system_prompt is None else f'{system_prompt}\n\n{offered}', options
