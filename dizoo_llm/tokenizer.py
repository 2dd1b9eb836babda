import os
import re
from collections import Counter
from functools import lru_cache
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split, WhitespaceSplit
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ding_common import ConfigError
from ding_common.loading import check_model_folder, quiet_hub, reason

SPECIAL = ['<eos>', '<pad>', '<unk>']  # behind the vocabulary of a tokenizer made here


def build_word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """
    Overview:
        A tokenizer over words that are separated by spaces: word i has id i, then follow ``<eos>``, ``<pad>`` and
        ``<unk>``. Encoding adds nothing, decoding joins with spaces.
    Arguments:
        - words (:obj:`Sequence[str]`): The vocabulary, each word once.
    Returns:
        - tokenizer (:obj:`PreTrainedTokenizerFast`): With ``len(words) + 3`` tokens.
    Raises:
        - ConfigError: If a word is there twice, is empty or holds white space.
    """
    words = [str(w) for w in words] + SPECIAL
    count = Counter(words)
    for word in words:
        if count[word] > 1 or word.split() != [word]:
            raise ConfigError(f'env.tokenizer.words: {word!r} must be there once, not empty and without white space.')
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token='<unk>'))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return _wrap(tokenizer)


def build_char_tokenizer(chars: str) -> PreTrainedTokenizerFast:
    """
    Overview:
        A tokenizer over characters: character i has id i, then follow ``<eos>``, ``<pad>`` and ``<unk>``. Encoding \
        adds nothing, decoding gives the text back.
    Arguments:
        - chars (:obj:`str`): The characters, each once.
    Returns:
        - tokenizer (:obj:`PreTrainedTokenizerFast`): With ``len(chars) + 3`` tokens.
    Raises:
        - ConfigError: If there is none, or one is there twice.
    """
    if not chars or len(set(chars)) < len(chars):
        raise ConfigError(f'env.tokenizer.chars = {chars!r}: must be characters, each once.')
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


def load_tokenizer(pretrained: str) -> PreTrainedTokenizerBase:
    """
    Overview:
        The tokenizer of a folder or hub name.
    Arguments:
        - pretrained (:obj:`str`): As ``AutoTokenizer.from_pretrained`` takes it.
    Raises:
        - ConfigError: If there is no tokenizer, or it has no end-of-sequence token.
    """
    check_model_folder(pretrained, 'env.tokenizer.pretrained')
    files = [os.path.join(pretrained, name) for name in ('tokenizer.json', 'tokenizer_config.json')]
    return _load_once(pretrained, tuple(os.stat(f).st_mtime_ns for f in files if os.path.exists(f)))


@lru_cache(maxsize=8)
def _load_once(pretrained: str, stamp: Tuple[int, ...]) -> PreTrainedTokenizerBase:
    """One in a process, however many environments, as long as its files stay as they are."""
    try:
        with quiet_hub():
            tokenizer = AutoTokenizer.from_pretrained(pretrained, trust_remote_code=False)
    except Exception as error:  # over a broken folder it raises anything, a bare Exception of tokenizers too
        what = 'the folder holds no tokenizer that can be loaded' if os.path.isdir(
            pretrained
        ) else 'no folder here, not in the cache, and the hub does not give it'
        raise ConfigError(f'env.tokenizer.pretrained = {pretrained!r}: {what} ({reason(error)})') from error
    if tokenizer.eos_token_id is None:
        raise ConfigError(f'env.tokenizer.pretrained = {pretrained!r}: the tokenizer has no end-of-sequence token.')
    return tokenizer


def end_ids(tokenizer: PreTrainedTokenizerBase) -> Tuple[int, ...]:
    """
    Overview:
        Every token that ends a completion: the tokenizer's end of sequence, and those that \
        ``generation_config.json``, where the tokenizer came from, names besides (chat models have an end of turn). \
        Nothing else of that file is taken.
    Arguments:
        - tokenizer (:obj:`PreTrainedTokenizerBase`): From ``load_tokenizer`` or made here.
    """
    ids = [tokenizer.eos_token_id]
    if not tokenizer.name_or_path:  # made here
        return tuple(ids)
    try:
        named = GenerationConfig.from_pretrained(tokenizer.name_or_path).eos_token_id
    except Exception as error:  # as in _load_once
        path = os.path.join(tokenizer.name_or_path, 'generation_config.json')
        if os.path.exists(path):
            raise ConfigError(f"{path}: cannot be read ({reason(error)})") from error
        named = None  # a folder of a tokenizer alone
    named = named if isinstance(named, list) else [] if named is None else [named]
    if not all(isinstance(i, int) for i in named):
        raise ConfigError(f'{tokenizer.name_or_path}: its generation_config.json has eos_token_id = {named!r:.200}.')
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
        Token ids of a prompt, up to where the policy begins to write. Of a chat the template alone writes control \
        tokens, see ``encode_text``.
    Arguments:
        - tokenizer (:obj:`PreTrainedTokenizerBase`): Any.
        - prompt (:obj:`Union[str, List[Dict[str, str]]]`): Text, or chat messages.
        - chat (:obj:`Optional[bool]`): Whether text becomes a user's message in the tokenizer's chat template; None: \
            if it has one.
        - system_prompt (:obj:`Optional[str]`): A message before a chat.
        - chat_options (:obj:`Dict[str, Any]`): Further variables of the template, such as ``enable_thinking``.
    Returns:
        - ids (:obj:`List[int]`): With what the tokenizer puts before a text, without an end of sequence behind it.
    Raises:
        - ConfigError: If a chat, a system prompt or variables are asked for and there is no template to use them, \
            messages begin with a system prompt of their own, or a text reads like a special token and the tokenizer \
            has no other tokens for it.
    """
    has_template = tokenizer.chat_template is not None
    if isinstance(prompt, str) and not (has_template if chat is None else chat):
        for key, value in (('system_prompt', system_prompt), ('chat_options', dict(chat_options) or None)):
            if value is not None:
                why = 'env.chat is False' if has_template else 'the tokenizer has no chat template'
                raise ConfigError(f'env.{key} = {value!r}: it would not be used, since {why}.')
        ids = encode_text(tokenizer, prompt, add_special_tokens=True)
        return ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id else ids
    if not has_template:
        asked = 'env.chat = True' if chat else 'env.task: gives chat messages'
        raise ConfigError(f'{asked}: the tokenizer of {tokenizer.name_or_path or "this run"} has no chat template.')
    messages = [dict(role='user', content=prompt)] if isinstance(prompt, str) else list(prompt)
    if system_prompt is not None and messages[0]['role'] == 'system':
        raise ConfigError(f'env.system_prompt = {system_prompt!r}: the problems have system messages of their own.')
    if system_prompt is not None:
        messages = [dict(role='system', content=system_prompt), *messages]
    given = [str(value) for message in messages for value in message.values()]
    holds = any(_reads_like_a_token(tokenizer, len(tokenizer)).search(text) for text in given)
    options = dict(chat_options, sanitize_control_tokens=True) if holds else chat_options
    try:
        return tokenizer.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=True, return_dict=False, **options
        )
    except ValueError as error:
        if not holds:
            raise
        raise ConfigError(f"env.tokenizer: {error}: {messages!r:.200}.") from error


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str, add_special_tokens: bool = False) -> List[int]:
    """
    Overview:
        Token ids of a text that is data: where it reads like a special token, as of an end of sequence, it becomes \
        the tokens of its letters.
    Arguments:
        - tokenizer (:obj:`PreTrainedTokenizerBase`): Any.
        - text (:obj:`str`): Any.
        - add_special_tokens (:obj:`bool`): Whether the tokenizer puts its own around it.
    Raises:
        - ConfigError: If the tokenizer has no other tokens for it.
    """
    if not _reads_like_a_token(tokenizer, len(tokenizer)).search(text):
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special} - {tokenizer.unk_token_id}
    plain = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    made = sorted(tokenizer.convert_ids_to_tokens(i) for i in special.intersection(plain))
    if made:
        raise ConfigError(f'env.tokenizer: it has no token for {made[:5]!r:.80} of {text!r:.200} but special ones.')
    return tokenizer.encode(text, add_special_tokens=add_special_tokens, split_special_tokens=True)


@lru_cache(maxsize=8)
def _reads_like_a_token(tokenizer: PreTrainedTokenizerBase, size: int) -> re.Pattern:
    """What may be a token of its own in a text; ``size`` grows when a tokenizer gets more of them."""
    texts = [re.escape(text) for text in tokenizer.get_added_vocab() if not text.isspace()]
    return re.compile('|'.join(texts) or '(?!)')
