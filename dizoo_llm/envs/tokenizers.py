"""The tokenizer of an environment: loaded, or made of the words or characters of its task."""
from functools import lru_cache
from typing import Dict, Optional, Tuple

from transformers import PreTrainedTokenizerBase

from ding_common import ConfigError
from dizoo_llm.tasks import Task
from dizoo_llm.tokenizer import (build_char_tokenizer, build_word_tokenizer, load_tokenizer)

_TOKENIZERS = "dict(pretrained='folder or name', gguf_file=None), dict(words=[...]) or dict(chars='...')"


def create_tokenizer(cfg: Optional[Dict], task: Task) -> PreTrainedTokenizerBase:
    """
    Overview:
        The tokenizer of an environment, one per process and config.
    Arguments:
        - cfg (:obj:`Optional[Dict]`): See ``TokenEnv``.
        - task (:obj:`Task`): Its words or characters are used if ``cfg`` is None.
    Raises:
        - ConfigError: If it cannot be made or loaded.
    """
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
    if not isinstance(cfg, dict):
        hint = ''
        if isinstance(cfg, PreTrainedTokenizerBase):
            cfg = f'{type(cfg).__name__} {cfg.name_or_path!r} with {len(cfg)} tokens'
            hint = ' Save it with its save_pretrained, and name the folder.'
        raise ConfigError(f'env.tokenizer = {cfg!s:.200}: must be {_TOKENIZERS}.{hint}')
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
