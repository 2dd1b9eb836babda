import os
import re
import threading
from collections import Counter
from functools import lru_cache
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split, WhitespaceSplit
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ding_common import ConfigError, describe
from ding_common.loading import quiet_hub, reason
from ding_common.pretrained import Pretrained
from dizoo_llm.tasks.base import check_unanswered

SPECIAL = ['<eos>', '<pad>', '<unk>']  # appended to the vocabulary of a tokenizer built here
# Held while a tokenizer encodes. DI-engine resets in threads, and ``split_special_tokens`` of a call changes the
# tokenizer itself, so that another thread would read ``<eos>`` in a text as the end of the sequence.
ENCODING = threading.RLock()
os.register_at_fork(before=ENCODING.acquire, after_in_parent=ENCODING.release, after_in_child=ENCODING.release)
MASK = 'special_tokens_mask'
MARK = 'TURN{}MARK'  # stands for the content of a message
HINTS = dict(  # where a template drops a turn
    system='Put its text into the first user turn.',
    tool='Use another template, or env.chat = False, with which results are plain text.',
)
MOST_MARKED = 1024  # forms of chats whose text is kept
_MARKED: Dict[str, str] = {}


def build_word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """
    Overview:
        Build a tokenizer over words that are separated by white space. Word i has id i, followed by ``<eos>``, \
        ``<pad>`` and ``<unk>``. Encoding adds no special tokens; decoding joins words with spaces.
    Arguments:
        - words (:obj:`Sequence[str]`): The vocabulary, each word once.
    Returns:
        - tokenizer (:obj:`PreTrainedTokenizerFast`): A tokenizer with ``len(words) + 3`` tokens.
    Raises:
        - ConfigError: If a word is repeated, is empty or contains white space.
    """
    words = [str(w) for w in words] + SPECIAL
    count = Counter(words)
    for word in words:
        if count[word] > 1 or word.split() != [word]:
            raise ConfigError(
                f'env.tokenizer.words: {word!r}: each word must occur once, be non-empty and contain no white space.'
            )
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token='<unk>'))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return _wrap(tokenizer)


def build_char_tokenizer(chars: str) -> PreTrainedTokenizerFast:
    """
    Overview:
        Build a tokenizer over characters. Character i has id i, followed by ``<eos>``, ``<pad>`` and ``<unk>``. \
        Encoding adds no special tokens; decoding restores the text.
    Arguments:
        - chars (:obj:`str`): The characters, each once.
    Returns:
        - tokenizer (:obj:`PreTrainedTokenizerFast`): A tokenizer with ``len(chars) + 3`` tokens.
    Raises:
        - ConfigError: If there are no characters, or one is repeated.
    """
    if not chars or len(set(chars)) < len(chars):
        raise ConfigError(f'env.tokenizer.chars = {chars!r}: must be at least one character, each only once.')
    tokenizer = Tokenizer(WordLevel({c: i for i, c in enumerate([*chars, *SPECIAL])}, unk_token='<unk>'))
    tokenizer.pre_tokenizer = Split(Regex(r'[\s\S]'), 'isolated')
    tokenizer.decoder = Fuse()
    return _wrap(tokenizer)


def _wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token='<eos>',
        pad_token='<pad>',
        unk_token='<unk>',
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(pretrained: str, gguf_file: Optional[str] = None) -> PreTrainedTokenizerBase:
    """
    Overview:
        Load the tokenizer of a folder, a hub name or a packaged model.
    Arguments:
        - pretrained (:obj:`str`): As for ``AutoTokenizer.from_pretrained``, or the name of a packaged model.
        - gguf_file (:obj:`Optional[str]`): A GGUF file of ``pretrained`` that contains the tokenizer.
    Raises:
        - ConfigError: If the tokenizer cannot be loaded, or has no end-of-sequence token.
    """
    found = Pretrained.locate(pretrained, gguf_file, 'env.tokenizer')
    names = ('tokenizer.json', 'tokenizer_config.json') if found.gguf_file is None else (found.gguf_file, )
    files = [os.path.join(found.path, name) for name in names]
    return _load_once(found, tuple(os.stat(f).st_mtime_ns for f in files if os.path.exists(f)))


@lru_cache(maxsize=8)
def _load_once(found: Pretrained, stamp: Tuple[int, ...]) -> PreTrainedTokenizerBase:
    """One tokenizer per process for all environments, as long as its files do not change."""
    try:
        with quiet_hub():
            tokenizer = AutoTokenizer.from_pretrained(found.path, trust_remote_code=False, **found.options)
    except Exception as error:  # a broken folder may raise anything, even a bare Exception of tokenizers
        what = 'the folder contains no tokenizer that can be loaded' if os.path.isdir(
            found.path
        ) else 'not a folder, not in the cache, and not available from the hub'
        raise ConfigError(f'env.tokenizer.pretrained = {found.where!r}: {what} ({reason(error)})') from error
    if tokenizer.eos_token_id is None:
        raise ConfigError(f'env.tokenizer.pretrained = {found.where!r}: the tokenizer has no end-of-sequence token.')
    return tokenizer


def end_ids(tokenizer: PreTrainedTokenizerBase) -> Tuple[int, ...]:
    """
    Overview:
        Every token that ends a completion: the tokenizer's end-of-sequence token, and further ones that the \
        ``generation_config.json`` next to the tokenizer lists (chat models have an end-of-turn token). No other \
        entry of that file is used.
    Arguments:
        - tokenizer (:obj:`PreTrainedTokenizerBase`): From ``load_tokenizer``, or built by this module.
    """
    ids = [tokenizer.eos_token_id]
    if not tokenizer.name_or_path:  # built by this module
        return tuple(ids)
    try:
        named = GenerationConfig.from_pretrained(tokenizer.name_or_path).eos_token_id
    except Exception as error:  # as in _load_once
        path = os.path.join(tokenizer.name_or_path, 'generation_config.json')
        if os.path.exists(path):
            raise ConfigError(f"{path}: cannot be read ({reason(error)})") from error
        named = None  # a folder that contains only a tokenizer
    named = named if isinstance(named, list) else [] if named is None else [named]
    if not all(isinstance(i, int) for i in named):
        raise ConfigError(
            f'{tokenizer.name_or_path}: its generation_config.json has eos_token_id = {named!r:.200}, must be integers.'
        )
    return tuple(dict.fromkeys(ids + named))


def encode_prompt(
        tokenizer: PreTrainedTokenizerBase,
        prompt: Union[str, List[Dict[str, str]]],
        chat: Optional[bool] = None,
        system_prompt: Optional[str] = None,
        chat_options: Dict[str, Any] = {},
) -> List[int]:
    """
    Overview:
        Token ids of a prompt, up to the position where the completion starts. In a chat only the template adds \
        control tokens, see ``encode_text``.
    Arguments:
        - tokenizer (:obj:`PreTrainedTokenizerBase`): Any tokenizer.
        - prompt (:obj:`Union[str, List[Dict[str, str]]]`): Text, or chat messages.
        - chat (:obj:`Optional[bool]`): Whether text becomes a user message in the tokenizer's chat template. None \
            applies the template if the tokenizer has one.
        - system_prompt (:obj:`Optional[str]`): System message at the start of every chat.
        - chat_options (:obj:`Dict[str, Any]`): Additional variables of the template, such as ``enable_thinking``.
    Returns:
        - ids (:obj:`List[int]`): Token ids, with the tokens that the tokenizer adds in front of a text, and without \
            an end-of-sequence token at the end.
    Raises:
        - ConfigError: If chat messages, a system prompt or template variables are given and no template is applied; \
            if a system prompt is given and the messages already start with one; or if a text contains the name of a \
            special token and the tokenizer has no other tokens for it.
    """
    if not in_chat(tokenizer, prompt, chat):
        for key, value in (('system_prompt', system_prompt), ('chat_options', dict(chat_options) or None)):
            if value is not None:
                why = 'the tokenizer has no chat template' if tokenizer.chat_template is None else 'env.chat is False'
                raise ConfigError(f'env.{key} = {value!r}: it would be ignored, since {why}.')
        ids = encode_text(tokenizer, prompt, add_special_tokens=True)
        if ids[-1:] == [tokenizer.eos_token_id] and tokenizer(prompt, return_special_tokens_mask=True)[MASK][-1] == 1:
            return ids[:-1]  # added by the tokenizer; an unknown part of the text may have the same token
        return ids
    if tokenizer.chat_template is None:
        asked = 'env.chat = True' if chat else 'env.task: its prompts are chat messages'
        raise ConfigError(f'{asked}: the tokenizer of {tokenizer.name_or_path or "this run"} has no chat template.')
    return apply_template(tokenizer, conversation(prompt, system_prompt), True, chat_options)


def encode_prompts(
        tokenizer: PreTrainedTokenizerBase,
        prompts: List[Union[str, List[Dict[str, str]]]],
        chat: Optional[bool] = None,
        system_prompt: Optional[str] = None,
        chat_options: Dict[str, Any] = {},
) -> List[List[int]]:
    """
    Overview:
        What ``encode_prompt`` gives for each of several prompts, faster: the tokenizer encodes texts together.
    Arguments:
        - tokenizer, chat, system_prompt, chat_options: As in ``encode_prompt``.
        - prompts (:obj:`List[Union[str, List[Dict[str, str]]]]`): Texts, or lists of chat messages.
    Raises:
        - ConfigError: As in ``encode_prompt``.
    """
    names = _reads_like_a_token(tokenizer, len(tokenizer))
    plain = all(isinstance(prompt, str) and not names.search(prompt) for prompt in prompts)
    chats = any(in_chat(tokenizer, prompt, chat) for prompt in prompts)
    if chats or not plain or system_prompt is not None or chat_options:
        return [encode_prompt(tokenizer, prompt, chat, system_prompt, chat_options) for prompt in prompts]
    # Threads of a tokenizer do not survive a fork, and it would print a warning in each forked environment.
    os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
    rows = tokenizer(prompts, add_special_tokens=True, return_special_tokens_mask=True)
    return [
        ids[:-1] if ids[-1:] == [tokenizer.eos_token_id] and mask[-1] == 1 else ids
        for ids, mask in zip(rows['input_ids'], rows[MASK])
    ]


def encode_dialogue(
        tokenizer: PreTrainedTokenizerBase,
        prompt: Union[str, List[Dict[str, str]]],
        completion: str,
        chat: Optional[bool] = None,
) -> List[int]:
    """
    Overview:
        Token ids of a prompt and its completion, as a reward model reads them: the completion is the last message of \
        the chat, or it follows the prompt and ends with the end-of-sequence token. A policy may write the names of \
        special tokens; a tokenizer of words reads them as unknown words.
    Arguments:
        - tokenizer, prompt, chat: As in ``encode_prompt``.
        - completion (:obj:`str`): Text.
    Raises:
        - ConfigError: As in ``encode_prompt``.
    """
    if tokenizer.chat_template is not None and (not isinstance(prompt, str) or chat is not False):
        messages = [*conversation(prompt), dict(role='assistant', content=completion)]
        return apply_template(tokenizer, messages, False, {})
    ids = encode_text(tokenizer, completion, unknown=True)
    if completion.startswith(' ') and decode_after(tokenizer, [], ids) != completion:
        ids = encode_text(tokenizer, completion[1:], unknown=True)  # the tokenizer adds a space before a text
    return encode_prompt(tokenizer, prompt, chat) + ids + [tokenizer.eos_token_id]


def in_chat(tokenizer: PreTrainedTokenizerBase, prompt: Union[str, List[Dict[str, str]]], chat: Optional[bool]) -> bool:
    """Whether a prompt becomes a chat: it has messages, or it is text and ``env.chat`` applies the template to it."""
    return not isinstance(prompt, str) or (tokenizer.chat_template is not None if chat is None else chat)


def conversation(prompt: Union[str, List[Dict[str, str]]], system_prompt: Optional[str] = None) -> List[Dict[str, str]]:
    """
    Overview:
        Text or messages as the messages that the policy answers.
    Raises:
        - ConfigError: If they end with an answer, or there are two system messages.
    """
    messages = [dict(role='user', content=prompt)] if isinstance(prompt, str) else list(prompt)
    check_unanswered(messages, 'env.task')
    if system_prompt is None:
        return messages
    if messages[0]['role'] == 'system':
        raise ConfigError(f'env.system_prompt = {system_prompt!r}: the problems already have a system message.')
    return [dict(role='system', content=system_prompt), *messages]


def marked(messages: List[Dict[str, str]]) -> List[Dict[str, str]]:
    """
    Overview:
        Messages with ``MARK`` and their number in place of their contents. What is empty, and what an assistant wrote \
        before a call of a function, has no mark: a template may leave it out.
    """
    return [
        dict(message, content=MARK.format(i) if message['content'].strip() and not message.get('tool_calls') else '')
        for i, message in enumerate(messages)
    ]


def marked_chat(
        tokenizer: PreTrainedTokenizerBase, messages: List[Dict[str, str]], generates: bool, options: Dict[str, Any]
) -> str:
    """
    Overview:
        The text of a chat of ``marked`` messages. It shows what a template adds around each, and what it drops. Chats \
        that differ only in contents are rendered once.
    Raises:
        - ConfigError: If the template drops the content of a message, or rejects their roles.
    """
    turns = marked(messages)
    key = repr((tokenizer.chat_template, tokenizer.special_tokens_map, turns, generates, options))
    text = _MARKED.get(key)
    if text is not None:
        return text
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=generates, **options)
    except Exception as error:  # a template may raise anything
        roles = ', '.join(turn['role'] for turn in turns)
        raise ConfigError(f'env.tokenizer: its chat template rejects the turns {roles}: {describe(error)}') from error
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


def apply_template(
        tokenizer: PreTrainedTokenizerBase, messages: List[Dict[str, str]], generates: bool, options: Dict[str, Any]
) -> List[int]:
    """Token ids of a chat; names of special tokens in its messages become ordinary tokens. See ``marked_chat``."""
    given = [str(value) for message in messages for value in message.values()]
    holds = any(_reads_like_a_token(tokenizer, len(tokenizer)).search(text) for text in given)
    sanitized = dict(sanitize_control_tokens=True) if holds else {}
    try:
        ids = tokenizer.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=generates, return_dict=False, **options, **sanitized
        )
    except ValueError as error:
        if not holds:
            raise
        raise ConfigError(f"env.tokenizer: {error}: {messages!r:.200}.") from error
    marked_chat(tokenizer, messages, generates, options)
    return ids


def encode_text(tokenizer: PreTrainedTokenizerBase,
                text: str,
                add_special_tokens: bool = False,
                unknown: bool = False) -> List[int]:
    """
    Overview:
        Token ids of a text that is data. The name of a special token in it, such as an end of sequence, is split into \
        ordinary tokens.
    Arguments:
        - tokenizer (:obj:`PreTrainedTokenizerBase`): Any tokenizer.
        - text (:obj:`str`): Any text.
        - add_special_tokens (:obj:`bool`): Whether the tokenizer adds its special tokens around the text.
        - unknown (:obj:`bool`): Whether a part for which the tokenizer has only special tokens becomes its unknown \
            token, if it has one.
    Raises:
        - ConfigError: If the tokenizer has only special tokens for a part of the text.
    """
    if not _reads_like_a_token(tokenizer, len(tokenizer)).search(text):
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special} - {tokenizer.unk_token_id}
    plain = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    made = sorted(tokenizer.convert_ids_to_tokens(i) for i in special.intersection(plain))
    if made and unknown and tokenizer.unk_token_id is not None:
        return [tokenizer.unk_token_id if i in special else i for i in plain]
    if made:
        raise ConfigError(f'env.tokenizer: it has no token for {made[:5]!r:.80} in {text!r:.200} except special ones.')
    return tokenizer.encode(text, add_special_tokens=add_special_tokens, split_special_tokens=True)


def decode_after(tokenizer: PreTrainedTokenizerBase, before: Sequence[int], ids: Sequence[int]) -> str:
    """
    Overview:
        The text that tokens add to that of the tokens before them. Decoders such as Llama 2's drop the first space of \
        a text, which is part of it after other tokens. Special tokens are part of the text.
    Arguments:
        - tokenizer (:obj:`PreTrainedTokenizerBase`): Any tokenizer.
        - before (:obj:`Sequence[int]`): The tokens before, of which only the last one is decoded. The end-of-sequence \
            token replaces it if the sequence is empty or the token ends within a character.
        - ids (:obj:`Sequence[int]`): The tokens.
    """

    def text(tokens: Sequence[int]) -> str:
        return tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    first = list(before[-1:])
    if not first or '\ufffd' in text(first):
        first = [tokenizer.eos_token_id]
    added = text([*first, *ids])[len(text(first)):]
    backend = getattr(tokenizer, 'backend_tokenizer', None)
    words = backend is not None and backend.decoder is None
    return added.removeprefix(' ') if words else added  # without a decoder, spaces between words are no text


@lru_cache(maxsize=8)
def _reads_like_a_token(tokenizer: PreTrainedTokenizerBase, size: int) -> re.Pattern:
    """Matches the names of added tokens. ``size`` is part of the cache key: it grows when tokens are added."""
    texts = [re.escape(text) for text in tokenizer.get_added_vocab() if not text.isspace()]
    return re.compile('|'.join(texts) or '(?!)')
