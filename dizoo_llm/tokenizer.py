"""Tokenizers, made here or loaded, and texts as token ids."""
import os
import re
import threading
from collections import Counter
from contextlib import contextmanager
from functools import lru_cache
from typing import Iterator, List, Optional, Sequence, Tuple

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split, WhitespaceSplit
from transformers import (AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast)

from ding_common import ConfigError
from ding_common.loading import quiet_hub, reason
from ding_common.model_folder import check_gguf, check_tokenizer
from ding_common.pretrained import Pretrained

SPECIAL = ['<eos>', '<pad>', '<unk>']  # appended to the vocabulary of a tokenizer built here
# Held while a tokenizer encodes. DI-engine resets in threads, and ``split_special_tokens`` of a call changes the
# tokenizer itself, so that another thread would read ``<eos>`` in a text as the end of the sequence.
ENCODING = threading.RLock()
os.register_at_fork(before=ENCODING.acquire, after_in_parent=ENCODING.release, after_in_child=ENCODING.release)


@contextmanager
def no_panic() -> Iterator[None]:
    """Raise a panic of ``tokenizers``, such as about a regular expression that takes too long, as a ``ConfigError``."""
    try:
        yield
    except BaseException as error:  # a panic is no Exception
        if type(error).__name__ != 'PanicException':
            raise
        raise ConfigError(f'env.tokenizer: it fails ({reason(error)}).') from error


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


def _without_threads() -> None:
    """The threads of a tokenizer do not survive a fork, and it would print a warning in each forked environment."""
    os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')


def _wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    _without_threads()
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
    _without_threads()
    check = check_tokenizer if found.gguf_file is None else check_gguf
    check(found.where, f'env.tokenizer.pretrained = {found.where!r}')
    try:
        with quiet_hub(), no_panic():
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


@no_panic()
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
    if not reads_like_a_token(tokenizer, len(tokenizer)).search(text):
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special} - {tokenizer.unk_token_id}
    plain = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    made = sorted(tokenizer.convert_ids_to_tokens(i) for i in special.intersection(plain))
    if made and unknown and tokenizer.unk_token_id is not None:
        return [tokenizer.unk_token_id if i in special else i for i in plain]
    if made:
        raise ConfigError(f'env.tokenizer: it has no token for {made[:5]!r:.80} in {text!r:.200} except special ones.')
    return tokenizer.encode(text, add_special_tokens=add_special_tokens, split_special_tokens=True)


@no_panic()
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
def reads_like_a_token(tokenizer: PreTrainedTokenizerBase, size: int) -> re.Pattern:
    """Matches the names of added tokens. ``size`` is part of the cache key: it grows when tokens are added."""
    texts = [re.escape(text) for text in tokenizer.get_added_vocab() if not text.isspace()]
    return re.compile('|'.join(texts) or '(?!)')
