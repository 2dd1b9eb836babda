"""Prompts and chats as token ids, and what a chat template puts around the messages."""
from itertools import groupby
from typing import Any, Dict, List, Optional

from transformers import PreTrainedTokenizerBase

from ding_common import ConfigError, nearest
from dizoo_llm.base.problem import Text, check_unanswered

from .template import TemplateFailure, apply, variables
from .tokenizer import decode_after, encode_text, no_panic, reads_like_a_token

MASK = 'special_tokens_mask'
MARK = 'TURN{}MARK'  # stands for the content of a message
HINTS = dict(  # where a template drops a turn
    system='Put its text into the first user turn.',
    tool='Use another template, or env.chat = False, with which results are plain text.',
)
MOST_MARKED = 1024  # forms of chats whose text is kept
_MARKED: Dict[str, str] = {}


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: Text, *chat: Any, **options: Any) -> List[int]:
    """What ``encode_prompts`` gives for one prompt."""
    return encode_prompts(tokenizer, [prompt], *chat, **options)[0]


def encode_prompts(
        tokenizer: PreTrainedTokenizerBase,
        prompts: List[Text],
        chat: Optional[bool] = None,
        system_prompt: Optional[str] = None,
        chat_options: Dict[str, Any] = {},
) -> List[List[int]]:
    """
    Token ids of prompts, texts or chat messages, without an end of sequence. ``chat`` tells whether a text becomes a
    user message in the chat template; None: if there is one. In a chat only the template adds control tokens.
    """
    if chat is False and not all(isinstance(prompt, str) for prompt in prompts):
        raise ConfigError(
            'env.chat = False: the prompts of env.task are chat messages, which only a chat template makes one text. '
            'Remove env.chat, or give the prompts as text.'
        )
    if any(in_chat(tokenizer, prompt, chat) for prompt in prompts):
        if tokenizer.chat_template is None:
            asked = 'env.chat = True' if chat else 'env.task: its prompts are chat messages'
            raise ConfigError(f'{asked}: the tokenizer of {tokenizer.name_or_path or "this run"} has no chat template.')
        return apply_templates(tokenizer, [conversation(p, system_prompt) for p in prompts], True, chat_options)
    for key, value in (('system_prompt', system_prompt), ('chat_options', dict(chat_options) or None)):
        if value is not None:
            why = 'the tokenizer has no chat template' if tokenizer.chat_template is None else 'env.chat is False'
            raise ConfigError(f'env.{key} = {value!r}: it would be ignored, since {why}.')
    names, found = reads_like_a_token(tokenizer, len(tokenizer)), []
    with no_panic():
        rows = tokenizer(prompts, add_special_tokens=True, return_special_tokens_mask=True)
    for text, ids, added in zip(prompts, rows['input_ids'], rows[MASK]):
        if names.search(text):
            ids = encode_text(tokenizer, text, add_special_tokens=True)
        # An unknown part of the text may have the token that a tokenizer adds at the end.
        found.append(ids[:-1] if ids[-1:] == [tokenizer.eos_token_id] and added[-1:] == [1] else ids)
    return found


def encode_dialogue(tokenizer: PreTrainedTokenizerBase,
                    prompt: Text,
                    completion: str,
                    chat: Optional[bool] = None) -> List[int]:
    """
    Token ids of a prompt and its completion, as a reward model reads them: the completion is the last message of the
    chat, or it follows the prompt and ends with the end-of-sequence token. It may contain names of special tokens.
    """
    if tokenizer.chat_template is not None and chat is not False:
        messages = [*conversation(prompt), dict(role='assistant', content=completion)]
        return apply_templates(tokenizer, [messages], False, {})[0]
    ids = encode_text(tokenizer, completion, unknown=True)
    if completion.startswith(' ') and decode_after(tokenizer, [], ids) != completion:
        ids = encode_text(tokenizer, completion[1:], unknown=True)  # the tokenizer adds a space before a text
    return encode_prompt(tokenizer, prompt, chat) + ids + [tokenizer.eos_token_id]


def check_options(tokenizer: PreTrainedTokenizerBase, options: Dict[str, Any]) -> None:
    """Require that the chat template reads each of ``env.chat_options``. It would ignore an unknown variable."""
    if not options:
        return
    try:
        read = variables(tokenizer, options)
    except TemplateFailure:  # reported where it is rendered
        return
    known = {*read} - {'messages', 'add_generation_prompt'}
    for key, value in options.items():
        if key not in known:
            allowed = nearest(key, known) if known else 'It reads none.'
            raise ConfigError(
                f'env.chat_options.{key} = {value!r:.200}: the chat template reads no such variable. {allowed}'
            )


def in_chat(tokenizer: PreTrainedTokenizerBase, prompt: Text, chat: Optional[bool]) -> bool:
    """Whether a prompt becomes a chat: it has messages, or it is text and ``env.chat`` applies the template to it."""
    return not isinstance(prompt, str) or (tokenizer.chat_template is not None if chat is None else chat)


def conversation(prompt: Text, system_prompt: Optional[str] = None) -> List[Dict[str, str]]:
    """Text or messages as the messages that the policy answers."""
    messages = [dict(role='user', content=prompt)] if isinstance(prompt, str) else list(prompt)
    check_unanswered(messages, 'env.task')
    if system_prompt is None:
        return messages
    if messages[0]['role'] == 'system':
        raise ConfigError(f'env.system_prompt = {system_prompt!r}: the problems already have a system message.')
    return [dict(role='system', content=system_prompt), *messages]


def marked(messages: List[Dict[str, str]]) -> List[Dict[str, str]]:
    """Messages with ``MARK`` and their number as contents. None for what a template may leave out: what is empty, and
    what an assistant wrote before a call of a function."""
    return [
        dict(message, content=MARK.format(i) if message['content'].strip() and not message.get('tool_calls') else '')
        for i, message in enumerate(messages)
    ]


def marked_chat(
        tokenizer: PreTrainedTokenizerBase, messages: List[Dict[str, str]], generates: bool, options: Dict[str, Any]
) -> str:
    """
    The text of a chat of ``marked`` messages: what a template adds around each. It may drop none. Chats that differ
    only in contents are rendered once.
    """
    turns = marked(messages)
    key = repr((tokenizer.chat_template, tokenizer.special_tokens_map, turns, generates, options))
    text = _MARKED.get(key)
    if text is not None:
        return text
    try:
        text, = apply(tokenizer, [turns], False, generates, options)
    except TemplateFailure as error:
        roles = ', '.join(turn['role'] for turn in turns)
        raise ConfigError(f'env.tokenizer: its chat template rejects the turns {roles}: {error.reason:.300}') from error
    for i, turn in enumerate(turns, 1):
        if turn['content'] not in text:
            hint = HINTS.get(turn['role'], 'Use another template.')
            raise ConfigError(
                f"env.tokenizer: its chat template drops the {turn['role']} turn (message {i} of {len(turns)}), so the "
                f'policy would not read it. {hint}'
            )
    if len(_MARKED) >= MOST_MARKED:
        _MARKED.clear()
    _MARKED[key] = text
    return text


def apply_templates(
        tokenizer: PreTrainedTokenizerBase, chats: List[List[Dict[str, str]]], generates: bool, options: Dict[str, Any]
) -> List[List[int]]:
    """Token ids of chats; names of special tokens in their messages become ordinary tokens. See ``marked_chat``."""
    names, rows = reads_like_a_token(tokenizer, len(tokenizer)), []
    for named, group in groupby(chats, lambda chat: any(names.search(str(v)) for m in chat for v in m.values())):
        if not named:
            rows += apply(tokenizer, list(group), True, generates, options)
            continue
        for messages in group:
            try:
                rows += apply(tokenizer, [messages], True, generates, options, sanitized=True)
            except TemplateFailure as error:
                if not error.reason.startswith('ValueError: '):
                    raise
                told = error.reason.removeprefix('ValueError: ')
                raise ConfigError(f'env.tokenizer: {told:.500}: {messages!r:.200}.') from error
    for messages in chats:
        marked_chat(tokenizer, messages, generates, options)
    return rows
