"""Token ids of prompts, answers and replies. Each text is encoded once; what the policy writes never is."""
import json
from functools import lru_cache
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from transformers import PreTrainedTokenizerBase

from ding_common import MOST, ConfigError, TaskError, describe
from dizoo_llm.base import Problem, Task, Text

from .chat import check_options, conversation, encode_prompt, encode_prompts, in_chat, marked_chat
from .reply import WRITTEN, added
from .template import TemplateFailure
from .tokenizer import ENCODING, create_tokenizer, decode_after, encode_text, end_ids, require_tokens

MOST_FOUND = 32_768  # prompt tokens at most when max_prompt_length is None: it sets the length of observations
MOST_ENCODED = 1024  # texts whose tokens are cached, since all environments of a group start with the same one
_ENCODED: Dict[Tuple, Tuple] = {}  # keeps a reference to the tokenizer, so that its id is not reused
_CALL = '<tool_call>{"name": "...", "arguments": {...}}</tool_call>'

Messages = List[Dict[str, Any]]


class Encoder:
    """The texts of a task as token ids. ``fitting_problems`` replaces a ``max_prompt_length`` of None."""

    def __init__(self, task: Task, options: Dict[str, Any]) -> None:
        """``options``: see ``ENV_OPTIONS``."""
        self._task = type(task).__name__
        self.tokenizer = create_tokenizer(options['tokenizer'], task)
        self.end_ids = end_ids(self.tokenizer)
        chat, system_prompt, chat_options = (options[key] for key in ('chat', 'system_prompt', 'chat_options'))
        chats = self.tokenizer.chat_template is not None and chat is not False
        if chats:
            check_options(self.tokenizer, chat_options)
        self._chat = (chat, system_prompt, chat_options)
        if chats:
            self._chat = (chat, *self._offered(task.tools))
        self._max_new_tokens = options['max_new_tokens']
        self.max_prompt_length = options['max_prompt_length']
        if chat is False or chats and task.has_turns:  # before anything is sampled
            problem = task.checked_problem(0)
            self._encode(problem)
        if chats and task.has_turns:
            begun = conversation(problem.prompt, self._chat[1])
            added(self.tokenizer, [dict(begun[-1], role='tool' if task.tools else 'user')], begun, self._chat[2])

    def prompt(self, problem: Problem) -> List[int]:
        """Token ids of a problem's prompt; a ``TaskError`` if it is empty, too long, or rejected by the template."""
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
        return self._known(ids, problem, self._chat)

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
            return [self._known(ids, problem, self._chat) for ids, problem in zip(rows, problems)]

    def _known(self, ids: List[int], problem: Problem, chat: Tuple) -> List[int]:
        applied, system_prompt, options = chat

        def around() -> str:
            if in_chat(self.tokenizer, problem.prompt, applied):
                return marked_chat(self.tokenizer, conversation(problem.prompt, system_prompt), True, options)
            return self.tokenizer.decode(self.tokenizer.encode(''), skip_special_tokens=False)

        return require_tokens(self.tokenizer, ids, problem.text, around)

    def most_tokens(self, problem: Problem) -> float:
        """Number of tokens that a prompt cannot exceed: a token of ASCII text has at least one character."""
        messages = problem.messages
        if not all(message['content'].isascii() and message['content'] and len(message) == 2 for message in messages):
            return float('inf')
        empty = '?' if isinstance(problem.prompt, str) else [dict(message, content='?') for message in messages]
        around = self._once('around', empty, lambda: encode_prompt(self.tokenizer, empty, *self._chat))
        return sum(len(message['content']) for message in messages) + 2 * len(around)

    def answer(self, text: str) -> List[int]:
        """Token ids of a turn, including the end-of-sequence token."""
        with ENCODING:
            ids = require_tokens(self.tokenizer, encode_text(self.tokenizer, text), text)
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
        Token ids that follow a turn of the policy: its end as far as the policy has not written it, the reply, and the
        start of the next turn, see ``added``. None if they are more than ``most``. ``earlier`` are the replies before.
        """
        if sum(len(message['content']) for message in Problem(text).messages) > self.most_chars(most):
            return None
        chat, system_prompt, options = self._chat
        try:
            if in_chat(self.tokenizer, problem.prompt, chat):
                begun = conversation(problem.prompt, system_prompt)
                for each in earlier:
                    begun += [WRITTEN, *conversation(each)]
                ids = self._after(turn, text, begun, options)
            else:
                ids = self.after_plain(turn, text)
        except Exception as error:  # a tokenizer may raise anything for half of a character
            told = error if isinstance(error, ConfigError) else f'{describe(error)}; reply: {text!r:.200}'
            raise TaskError(f'{self._task}: a reply could not be encoded: {told}') from error
        return ids if len(ids) <= most else None

    def text(self, text: str) -> List[int]:
        """Token ids of a prompt to which no template is applied."""
        return require_tokens(self.tokenizer, encode_prompt(self.tokenizer, text, False), text)

    def chat(self, messages: Messages, tools: Messages) -> List[int]:
        """Token ids of messages that the policy answers, with functions that it may call."""
        system_prompt, options = self._offered(tools)
        ids = encode_prompt(self.tokenizer, messages, True, system_prompt, options)
        return self._known(ids, Problem(messages), (True, system_prompt, options))

    def after_chat(self, turn: List[int], begun: Messages, messages: Messages, tools: Messages) -> List[int]:
        """Token ids that follow a turn of the policy, which answered ``begun``: as ``reply``."""
        system_prompt, options = self._offered(tools)
        return self._after(turn, messages, conversation(begun, system_prompt), options)

    def after_plain(self, turn: List[int], text: Text) -> List[int]:
        """As ``reply``, where no template is applied."""
        ids = self._once('text', text, lambda: self._encode_plain(text))
        return [*[self.tokenizer.eos_token_id] * (turn[-1] not in self.end_ids), *ids]

    def _after(self, turn: List[int], text: Text, begun: Messages, options: Dict[str, Any]) -> List[int]:
        begun = [dict(message, content='?') for message in begun]
        after = self._once('reply', (text, begun, options), lambda: added(self.tokenizer, text, begun, options))
        return after.ids[after.written(turn, self.end_ids, self.tokenizer.added_tokens_decoder):]

    def _offered(self, tools: Messages) -> Tuple[Optional[str], Dict[str, Any]]:
        """System prompt and variables of the template that describe functions: its own description if it has one."""
        _, system_prompt, options = self._chat
        if not tools:
            return system_prompt, options
        own = {'tools': tools, **options}
        plain, shown = (marked_chat(self.tokenizer, conversation('?'), True, each) for each in (options, own))
        if all(shown.count(tool['function']['name']) > plain.count(tool['function']['name']) for tool in tools):
            return system_prompt, own
        described = '\n'.join(json.dumps(tool['function']) for tool in tools)
        offered = (
            f'You may call functions. To call one, write {_CALL} and end your turn; the result follows.\nFunctions:\n'
            f'{described}'
        )
        return offered if system_prompt is None else f'{system_prompt}\n\n{offered}', options

    def most_chars(self, tokens: int) -> int:
        """More characters than this have more than so many tokens."""
        return tokens * _longest_token(self.tokenizer, len(self.tokenizer))

    def decode(self, ids: Sequence[int], before: Sequence[int] = ()) -> str:
        """The text of tokens that follow others, with every special token in it."""
        return decode_after(self.tokenizer, before, ids)

    def turn_text(self, ids: Sequence[int], before: Sequence[int] = ()) -> str:
        """The text of a turn of the policy, without the token that ends it."""
        return self.decode(ids[:-1] if len(ids) > 0 and ids[-1] in self.end_ids else ids, before)

    def _encode_plain(self, text: Text) -> List[int]:
        """The tokens of a reply where no template is applied."""
        shown = Problem(text).text
        if not isinstance(text, str):
            if any(message['role'] != 'tool' for message in text):
                raise ConfigError(f'env.chat: the reply {shown!r:.200} has chat messages, and no template is applied.')
            text = '\n'.join(message['content'] for message in text)
        return require_tokens(self.tokenizer, encode_text(self.tokenizer, text), shown)

    def _once(self, kind: str, text: Text, encode: Callable) -> Any:
        key = (id(self.tokenizer), kind, repr(text), repr(self._chat))
        with ENCODING:
            if key not in _ENCODED:
                encoded = encode()
                if len(_ENCODED) >= MOST_ENCODED:
                    _ENCODED.pop(next(iter(_ENCODED)))
                _ENCODED[key] = (self.tokenizer, encoded)
            return _ENCODED[key][1]


@lru_cache(maxsize=8)
def _longest_token(tokenizer: PreTrainedTokenizerBase, size: int) -> int:
    """In characters. ``size`` is part of the cache key: it grows when tokens are added."""
    return max(map(len, tokenizer.get_vocab())) + 1  # a tokenizer of words does not encode the space between two
