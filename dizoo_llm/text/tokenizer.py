"""Tokenizers, made here or loaded, and texts as token ids."""
import os
import re
import threading
from collections import Counter
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split, WhitespaceSplit
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ding_common import ConfigError
from ding_common.hub.loading import quiet_hub, reason
from ding_common.hub.model_folder import check_gguf, check_tokenizer
from ding_common.hub.pretrained import Pretrained

KINDS = "dict(pretrained='folder or name', gguf_file=None), dict(words=[...]) or dict(chars='...')"
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
    """A tokenizer over words between white space. Word i has id i; ``SPECIAL`` follow. Encoding adds no tokens."""
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
    """A tokenizer over characters. Character i has id i; ``SPECIAL`` follow. Encoding adds no tokens."""
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
    """Load the tokenizer of a folder, a hub name or a packaged model, or of a GGUF file of the folder."""
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
    Every token that ends a completion: the tokenizer's end-of-sequence token, and those of the
    ``generation_config.json`` beside it, such as the end of a turn. No other entry of that file is used.
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
    Token ids of a text that is data. Names of special tokens in it are split into ordinary tokens. If the tokenizer has
    none, this is a ``ConfigError``; with ``unknown`` they become the unknown token, if there is one.
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


def require_tokens(tokenizer: PreTrainedTokenizerBase,
                   ids: List[int],
                   text: str,
                   around: Callable[[], str] = str) -> List[int]:
    """The ids of a text, if they know each part of it. What is put around it may have the unknown token as well."""
    unknown = tokenizer.unk_token_id
    found = 0 if unknown is None else ids.count(unknown)
    if found > 0 and found > around().count(tokenizer.unk_token):
        lacking = {c for c in {*text.split(), *text} if unknown in tokenizer.encode(c, add_special_tokens=False)}
        some = sorted(c for c in lacking if len(c) == 1) or sorted(lacking) or [tokenizer.unk_token]
        raise ConfigError(f'env.tokenizer: it has no token for {some[:5]!r:.80} in {text!r:.200}.')
    return ids


@no_panic()
def decode_after(tokenizer: PreTrainedTokenizerBase, before: Sequence[int], ids: Sequence[int]) -> str:
    """
    The text that tokens add to that of the tokens before them. Decoders such as Llama 2's drop the first space of a
    text, which is part of it after other tokens. Special tokens are part of the text. Only the last token before is
    decoded. If no token is before, or the last one ends within a character, the end-of-sequence token replaces it.
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


def create_tokenizer(cfg: Optional[Dict], task: Any) -> PreTrainedTokenizerBase:
    """The tokenizer of ``env.tokenizer``; None makes it of the task's words or characters."""
    where = 'env.tokenizer'
    if cfg is None:
        where = f'env.task: {type(task).__name__}'
        cfg = {key: getattr(task, key) for key in ('words', 'chars') if getattr(task, key) is not None}
        if len(cfg) != 1:
            raise ConfigError(
                f'env.tokenizer = None: {type(task).__name__} must define either words or chars for that; else set '
                f'{KINDS}.'
            )
    kinds = dict(pretrained=str, words=(list, tuple), chars=str)
    if not isinstance(cfg, dict):
        told, hint = f'{cfg!r:.200}', ''
        if isinstance(cfg, PreTrainedTokenizerBase):
            told = f'{type(cfg).__name__} {cfg.name_or_path!r} with {len(cfg)} tokens'
            hint = ' Save it with its save_pretrained, and name the folder.'
        raise ConfigError(f'env.tokenizer = {told}: must be {KINDS}.{hint}')
    cfg = dict(cfg)
    gguf_file = cfg.pop('gguf_file', None) if 'pretrained' in cfg else None
    (kind, value), *more = cfg.items() or [(None, None)]
    if more or kind not in kinds:
        raise ConfigError(f'env.tokenizer = {cfg!r:.200}: must be {KINDS}.')
    if not isinstance(value, kinds[kind]) or not value:
        allowed = dict(pretrained='a folder or a name', words='a list of words', chars='a text of all characters')
        raise ConfigError(f'{where}.{kind} = {value!r:.200}: must be {allowed[kind]}.')
    return load_tokenizer(value, gguf_file) if kind == 'pretrained' else _make_once(kind, tuple(map(str, value)))


@lru_cache(maxsize=8)
def _make_once(kind: str, parts: Tuple[str, ...]) -> PreTrainedTokenizerBase:
    """One tokenizer per process, so that environments share the cache of encoded prompts."""
    return build_word_tokenizer(parts) if kind == 'words' else build_char_tokenizer(''.join(parts))
