"""Token ids of prompts, answers and replies. Each text is encoded once; what the policy writes never is."""
import json
import re
from functools import lru_cache
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

from transformers import PreTrainedTokenizerBase

from dizoo_llm.tasks import Problem, Task
from dizoo_llm.tokenizer import apply_template, build_char_tokenizer, build_word_tokenizer, encode_prompt, \
    encode_text, end_ids, load_tokenizer
from ding_common import MOST, ConfigError, TaskError, describe

MOST_READ = 20_000  # problems at most when the longest prompt has to be found
MOST_FOUND = 32_768  # prompt tokens at most when max_prompt_length is None: it sets the length of observations
MOST_ENCODED = 1024  # texts whose tokens are cached, since all environments of a group start with the same one
_ENCODED: Dict[Tuple, Tuple] = {}  # keeps a reference to the tokenizer, so that its id is not reused
_TOKENIZERS = "dict(pretrained='folder or name', gguf_file=None), dict(words=[...]) or dict(chars='...')"
_CALL = '<tool_call>{"name": "...", "arguments": {...}}</tool_call>'
_MARK = 'WRITTEN'  # stands for the policy's turn where a chat template renders a conversation

Text = Union[str, List[Dict[str, str]]]


class Encoder:
    """
    Overview:
        The texts of a task as token ids.
    Interfaces:
        ``prompt``, ``answer``, ``reply``, ``decode``
    Property:
        - tokenizer (:obj:`PreTrainedTokenizerBase`): The tokenizer.
        - end_ids (:obj:`Tuple[int, ...]`): Every token that ends a turn.
        - max_prompt_length (:obj:`int`): Maximum prompt length in tokens.
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
        self.tokenizer = _create_tokenizer(tokenizer, task)
        self.end_ids = end_ids(self.tokenizer)
        offers = bool(task.tools) and self.tokenizer.chat_template is not None and chat is not False
        if offers:
            system_prompt, chat_options = _offer(self.tokenizer, task.tools, system_prompt, chat_options)
        self._chat = (chat, system_prompt, chat_options)
        self._max_new_tokens = max_new_tokens
        self.max_prompt_length = max_prompt_length
        if max_prompt_length is None:
            self.max_prompt_length = self._longest_prompt(task)

    def prompt(self, problem: Problem) -> List[int]:
        """
        Overview:
            Token ids of a problem's prompt.
        Raises:
            - ConfigError: If the tokenizer has no token for a part of it.
            - TaskError: If the chat template rejects it, or the prompt is empty or too long.
        """

        def encode() -> List[int]:
            try:
                ids = encode_prompt(self.tokenizer, problem.prompt, *self._chat)
            except ConfigError:
                raise
            except Exception as error:  # a chat template may raise anything for a problem's messages
                raise TaskError(f'a prompt could not be encoded: {error}; problem: {problem.text!r:.200}') from error
            return self._known(ids, problem.text)

        ids = self._once('prompt', problem.prompt, encode)
        if not 0 < len(ids) <= (MOST_FOUND if self.max_prompt_length is None else self.max_prompt_length):
            told = f'env.max_prompt_length = {self.max_prompt_length}'
            allowed = told if self.max_prompt_length is not None else f'{MOST_FOUND} with {told}'
            raise TaskError(
                f'{self._task}: a prompt has {len(ids)} tokens, must have 1 to {allowed}; change the limit or the '
                f'prompt: {problem.text!r:.200}'
            )
        return list(ids)

    def answer(self, text: str) -> List[int]:
        """
        Overview:
            Token ids of a turn, including the end-of-sequence token.
        Raises:
            - ConfigError: If the tokenizer has no token for a part of it, or it is longer than ``max_new_tokens``.
        """
        ids = self._known(encode_text(self.tokenizer, text), text)
        if len(ids) + 1 > self._max_new_tokens:
            raise ConfigError(
                f'env.max_new_tokens = {self._max_new_tokens}: the answer {text!r:.200} has {len(ids) + 1} tokens, '
                'including the end-of-sequence token. Raise it.'
            )
        return ids + [self.tokenizer.eos_token_id]

    def reply(self, problem: Problem, text: Text, closed: bool, most: int = MOST) -> Optional[List[int]]:
        """
        Overview:
            Token ids that follow a turn of the policy: the end of the turn unless the policy wrote it, the reply, and \
            the start of the next turn. In a chat, the template renders a conversation with a placeholder for the \
            policy's turn, and only what follows the placeholder is encoded. Templates that change earlier turns do no \
            harm, because earlier turns are never rendered.
        Arguments:
            - problem (:obj:`Problem`): The problem of the episode.
            - text (:obj:`Union[str, List[Dict[str, str]]]`): The reply, text or chat messages.
            - closed (:obj:`bool`): Whether the policy ended its turn with a token of ``end_ids``.
            - most (:obj:`int`): Maximum number of token ids.
        Returns:
            - ids (:obj:`Optional[List[int]]`): None if they are more. A text longer than ``most_chars`` is not encoded.
        Raises:
            - TaskError: If the tokenizer has no token for a part of the reply, or the template rejects it.
        """
        contents = [text] if isinstance(text, str) else [message['content'] for message in text]
        if sum(map(len, contents)) > self.most_chars(most):
            return None
        chat = self._chat[0]
        in_chat = not isinstance(problem.prompt, str) or \
            (self.tokenizer.chat_template is not None if chat is None else chat)
        try:
            close, ids = self._once(f'reply {in_chat}', text, lambda: self._encode_reply(text, in_chat))
        except ConfigError as error:
            raise TaskError(f'{self._task}: a reply could not be encoded: {error}') from error
        except Exception as error:  # a tokenizer may raise anything for half of a character
            raise TaskError(
                f'{self._task}: a reply could not be encoded: {describe(error)}; reply: {text!r:.200}'
            ) from error
        starts = len(close) > 0 and close[0] in self.end_ids
        ids = [*close[starts:], *ids] if closed else [*[self.tokenizer.eos_token_id] * (not starts), *close, *ids]
        return ids if len(ids) <= most else None

    def most_chars(self, tokens: int) -> int:
        """More characters than this have more than so many tokens."""
        return tokens * _longest_token(self.tokenizer, len(self.tokenizer))

    def decode(self, ids: List[int]) -> str:
        """The text of tokens, with every special token in it."""
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _encode_reply(self, text: Text, in_chat: bool) -> Tuple[List[int], List[int]]:
        """The tokens that a template puts behind a turn, and those of the reply."""
        if not in_chat and not isinstance(text, str) and all(message['role'] == 'tool' for message in text):
            text = '\n'.join(message['content'] for message in text)
        shown = Problem(text).text
        if not in_chat:
            if not isinstance(text, str):
                raise ConfigError(f'env.chat: the reply {shown!r:.200} has chat messages, and no template is applied.')
            return [], self._known(encode_text(self.tokenizer, text), shown)
        messages = [dict(role='user', content=text)] if isinstance(text, str) else list(text)
        close, _ = self._behind_mark([], False)
        ids, rendered = self._behind_mark(messages, True)
        if ids[:len(close)] != close:
            raise ConfigError(
                "env.tokenizer: its chat template ends a turn differently when messages follow it, so a reply cannot "
                f'be appended: {rendered!r:.200}'
            )
        return close, self._known(ids[len(close):], shown)

    def _behind_mark(self, messages: List[Dict[str, str]], generates: bool) -> Tuple[List[int], str]:
        """The tokens behind the policy's turn in a conversation that goes on with ``messages``, and the whole text."""
        begun = [dict(role='user', content='?'), dict(role='assistant', content=_MARK)]
        options = self._chat[2]
        try:
            ids = apply_template(self.tokenizer, [*begun, *messages], generates, options)
            text = self.tokenizer.apply_chat_template(
                [*begun, *messages], tokenize=False, add_generation_prompt=generates, **options
            )
        except ConfigError:
            raise
        except Exception as error:  # a template may raise anything
            raise ConfigError(f'env.tokenizer: its chat template raised {error}') from error
        end = text.find(_MARK) + len(_MARK)
        before = self.tokenizer.encode(text[:end], add_special_tokens=False)
        if _MARK not in text or ids[:len(before)] != before:
            raise ConfigError(
                'env.tokenizer: the tokens of a turn depend on what its chat template puts behind it, so a reply '
                f'cannot be appended: {text!r:.200}'
            )
        return ids[len(before):], text

    def _once(self, kind: str, text: Text, encode: Callable) -> Any:
        key = (id(self.tokenizer), kind, repr(text), repr(self._chat))
        if key not in _ENCODED:
            if len(_ENCODED) >= MOST_ENCODED:
                _ENCODED.pop(next(iter(_ENCODED)))
            _ENCODED[key] = (self.tokenizer, encode())
        return _ENCODED[key][1]

    def _known(self, ids: List[int], text: str) -> List[int]:
        unknown = self.tokenizer.unk_token_id
        if unknown is not None and unknown in ids:
            lacking = {c for c in {*text.split(), *text} if self.tokenizer.convert_tokens_to_ids(c) == unknown}
            some = sorted(c for c in lacking if len(c) == 1) or sorted(lacking)
            raise ConfigError(f'env.tokenizer: it has no token for {some[:5]!r:.80} in {text!r:.200}.')
        return ids

    def _longest_prompt(self, task: Task) -> int:
        parts = [task, task.evaluation()]
        number = sum(map(len, parts))
        if number > MOST_READ:
            raise ConfigError(
                f'env.max_prompt_length = None: the task has {number} problems; the longest prompt is searched for '
                f'only among at most {MOST_READ}. Set it to the length of the longest prompt in tokens.'
            )
        return max(len(self.prompt(part.checked_problem(i))) for part in parts for i in range(len(part)))


@lru_cache(maxsize=8)
def _longest_token(tokenizer: PreTrainedTokenizerBase, size: int) -> int:
    """In characters. ``size`` is part of the cache key: it grows when tokens are added."""
    return max(map(len, tokenizer.get_vocab())) + 1  # a tokenizer of words does not encode the space between two


def _offer(
        tokenizer: PreTrainedTokenizerBase, tools: List[Dict[str, Any]], system_prompt: Optional[str],
        options: Dict[str, Any]
) -> Tuple[Optional[str], Dict[str, Any]]:
    """System prompt and variables of a chat template that describe functions: its own description if it has one."""
    if re.search(r'\btools\b', tokenizer.get_chat_template(tools=tools)):
        return system_prompt, {'tools': tools, **options}
    described = '\n'.join(json.dumps(tool['function']) for tool in tools)
    offered = (
        f'You may call functions. To call one, write {_CALL} and end your turn; the result follows.\nFunctions:\n'
        f'{described}'
    )
    return offered if system_prompt is None else f'{system_prompt}\n\n{offered}', options


def _create_tokenizer(cfg: Optional[Dict], task: Task) -> PreTrainedTokenizerBase:
    where = 'env.tokenizer'
    if cfg is None:
        where = f'env.task: {type(task).__name__}'
        cfg = {key: getattr(task, key) for key in ('words', 'chars') if getattr(task, key) is not None}
        if len(cfg) != 1:
            raise ConfigError(
                f'env.tokenizer = None: {type(task).__name__} must define either words or chars for that; else set '
                f'{_TOKENIZERS}.'
            )
    kinds = dict(pretrained=str, words=(list, tuple), chars=str)
    cfg = dict(cfg)
    gguf_file = cfg.pop('gguf_file', None) if 'pretrained' in cfg else None
    (kind, value), *more = cfg.items() or [(None, None)]
    if more or kind not in kinds:
        raise ConfigError(f'env.tokenizer = {cfg!r:.200}: must be {_TOKENIZERS}.')
    if not isinstance(value, kinds[kind]) or not value:
        allowed = dict(pretrained='a folder or a name', words='a list of words', chars='a text of all characters')
        raise ConfigError(f'{where}.{kind} = {value!r:.200}: must be {allowed[kind]}.')
    return load_tokenizer(value, gguf_file) if kind == 'pretrained' else _make_once(kind, tuple(map(str, value)))


@lru_cache(maxsize=8)
def _make_once(kind: str, parts: Tuple[str, ...]) -> PreTrainedTokenizerBase:
    """One tokenizer per process, so that environments share the cache of encoded prompts."""
    return build_word_tokenizer(parts) if kind == 'words' else build_char_tokenizer(''.join(parts))
