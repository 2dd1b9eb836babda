"""Lengths from which an architecture reads a row differently, which a short trial cannot detect."""
from typing import Optional, Tuple

from transformers import PretrainedConfig, PreTrainedModel

from ding_common import ConfigError

TOKENS = 11  # number of tokens of each row of the trial
SELECTS = ('index_topk', 'keep_window_size')  # number of attended keys in DeepSeek's sparse attention and in Doge


def check_length(lm: PreTrainedModel, tokens: int) -> None:
    """Raise a ``ConfigError`` if a prompt and its completion may have more tokens than the architecture allows."""
    reason, most = length_limit(lm.config.get_text_config())
    if most is not None and tokens > most:
        raise ConfigError(
            f'policy.model: in {type(lm).__name__} {reason} beyond {most} tokens. A prompt and its completion may '
            f'have {tokens}. Lower env.max_prompt_length or env.max_new_tokens.'
        )


def length_limit(config: PretrainedConfig) -> Tuple[str, Optional[int]]:
    """Length up to which a row is read independently of the other rows and of later tokens, None without a limit;
    before it, the change in longer rows. It covers limits that a trial of ``TOKENS`` tokens cannot detect."""
    limits = [(float('inf'), '')]
    rope = getattr(config, 'rope_parameters', None) or {}
    for kind in [rope, *rope.values()]:  # one for all layers, or one per type of layer
        name = kind.get('rope_type', '') if isinstance(kind, dict) else ''
        if name == 'longrope' or 'dynamic' in name:
            original = kind.get('original_max_position_embeddings') or \
                getattr(config, 'original_max_position_embeddings', None) or config.max_position_embeddings
            limits.append((original, f'rope_type {name!r} scales the positions of all rows of a batch by the longest'))
    for key in SELECTS:
        size = getattr(config, key, None)
        if isinstance(size, int) and size >= TOKENS:  # the trial detects whether a smaller set is causal
            limits.append((size, f'{key} = {size} makes the attention select keys'))
    tokens, reason = min(limits)
    return reason, None if reason == '' else tokens
