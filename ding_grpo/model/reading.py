"""
Ways to read rows of tokens, the fastest first. A model takes the first way that gives what each row gives when it is
read alone. That is tried, not assumed. The trial computes in float64, whatever the type of the weights: there a right
way differs by rounding, far below ``TOLERANCE``, and a wrong way is far above it. So the choice depends on the
architecture, and not on its weights, their type, or adapters.
"""
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.utils import logging as hf_logging

from ding_common import ConfigError, describe

from . import shared_prompt
from .decoding import ByLengthDecoding, CachedDecoding, Decoding, NoCache, PromptBatch, RereadDecoding, \
    SharedDecoding
from .float64 import in_float64
from .rows import read_plain, read_shared

SHARED, PADDED, BY_LENGTH, REREAD = WAYS = ('shared', 'padded', 'by_length', 'reread')
TOKENS = 11  # of each row of the trial
SELECTS = ('index_topk', 'keep_window_size')  # keys that are attended to, of DeepSeek's sparse attention and of Doge
TOLERANCE = 1e-8  # relative to the largest number, in float64


class Trial(NamedTuple):
    """
    Overview:
        Result of ``choose``: one of ``WAYS``, and why it is not 'shared'.
    """
    way: str
    reason: str = ''


def choose(model: Any, longest: int) -> Optional[Trial]:
    """
    Overview:
        Find the fastest way in which a model can be read.
    Arguments:
        - model (:obj:`CausalLM`): The model, with its adapters switched off.
        - longest (:obj:`int`): Most tokens of a prompt and its completion together.
    Returns:
        - trial (:obj:`Optional[Trial]`): None if weights are NaN or infinite, with which nothing can be tried.
    Raises:
        - ConfigError: If rows read together never give what each gives alone.
    """
    reasons: List[str] = []
    ways, arithmetic, tolerance = WAYS, in_float64, TOLERANCE
    with torch.no_grad(), torch.autocast(model.device.type, enabled=False), _quiet():
        try:
            model.output_head()
        except ConfigError:  # the policy has said why, where it matters
            ways = WAYS[1:]
            reasons.append('prompts are shared below the output layer, and that is not a scaled or soft-capped product')
        try:
            with in_float64():
                trials = [_Rows.make(model, seed) for seed in range(2)]
        except Exception as error:  # an operation that has no float64, as in a quantised layer
            # In the type of the weights a small leak between rows would pass for rounding: nothing is shared.
            ways, arithmetic, tolerance = WAYS[1:], nullcontext, torch.finfo(model.lm.dtype).eps ** 0.5
            reasons.append(f'it does not run in float64: {describe(error)}')
            try:
                trials = [_Rows.make(model, seed) for seed in range(2)]
            except Exception as error:
                raise _refusal(model, describe(error)) from error
        if not all(rows.logit.isfinite().all() for rows in trials):
            return None
        try:
            _check_gradient(model, trials[0].prompts.ids)
        except Exception as error:
            raise _refusal(model, describe(error)) from error
        for way in ways:
            before = model.lm.config._attn_implementation
            try:
                with arithmetic():
                    for rows in trials:
                        _check(model, way, rows, longest, tolerance)
                return Trial(way, reasons[0] if reasons else '')
            except Exception as error:  # whatever an architecture raises, this is no way to read it
                if model.lm.config._attn_implementation != before:
                    model.lm.set_attn_implementation(before)
                known = isinstance(error, (_Differs, shared_prompt.NotShared, NoCache))
                reasons.append(str(error) if known else describe(error))
    raise _refusal(
        model, f'{reasons[-1]}. It must be causal, and read rows without a cache independently of each other'
    )


def _refusal(model: Any, reason: str) -> ConfigError:
    return ConfigError(f'policy.model: {type(model.lm).__name__} cannot be trained: {reason}.')


def _check_gradient(model: Any, ids: Tensor) -> None:
    """An architecture may refuse gradients in evaluation mode, as Reformer does."""
    with torch.enable_grad():
        hidden = model.trunk(input_ids=ids, use_cache=False).last_hidden_state
        if hidden.requires_grad:  # not where all weights are frozen
            trained = next(p for p in model.trunk.parameters() if p.requires_grad)
            torch.autograd.grad(hidden.sum(), trained, allow_unused=True)


def length_limit(config: PretrainedConfig) -> Tuple[str, Optional[int]]:
    """
    Overview:
        Length up to which a row is read independently of the others and of what follows it, as far as a trial of \
        ``TOKENS`` tokens cannot show it.
    Arguments:
        - config (:obj:`PretrainedConfig`): Of a language model.
    Returns:
        - reason (:obj:`str`): What changes in longer rows.
        - tokens (:obj:`Optional[int]`): The lowest such length; None without one.
    """
    limits = [(float('inf'), '')]
    rope = getattr(config, 'rope_parameters', None) or {}
    for kind in [rope, *rope.values()]:  # one for all layers, or one for each type of layer
        name = kind.get('rope_type', '') if isinstance(kind, dict) else ''
        if name == 'longrope' or 'dynamic' in name:
            original = kind.get('original_max_position_embeddings') or \
                getattr(config, 'original_max_position_embeddings', None) or config.max_position_embeddings
            limits.append((original, f'rope_type {name!r} scales the positions of all rows of a batch by the longest'))
    for key in SELECTS:
        size = getattr(config, key, None)
        if isinstance(size, int) and size >= TOKENS:  # a trial shows whether a smaller set is causal
            limits.append((size, f'{key} = {size} makes the attention select keys'))
    tokens, reason = min(limits)
    return reason, None if reason == '' else tokens


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of ``transformers`` about ways that are tried."""
    before = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    try:
        yield
    finally:
        hf_logging.set_verbosity(before)


def start(model: Any, way: str, prompts: PromptBatch) -> Decoding:
    """
    Overview:
        Read prompts in one of ``WAYS``, to go on from there.
    """
    if way == SHARED:
        return SharedDecoding(model.trunk, model.output_head(), prompts)
    kind = {PADDED: CachedDecoding, BY_LENGTH: ByLengthDecoding, REREAD: RereadDecoding}[way]
    return kind(model.lm, model.output_tokens, prompts)


class _Rows(NamedTuple):
    """Two rows of one prompt and one of a shorter prompt, and what each gives when it is read alone."""
    prompts: PromptBatch
    completion: Tensor  # (3, S)
    length: Tensor  # (3, )
    hidden: Tensor  # (3, S, H), before each token of the completion
    logit: Tensor  # (3, S, V)

    @classmethod
    def make(cls, model: Any, seed: int) -> '_Rows':
        """Another seed changes the tokens of all rows but the second, which must not notice."""
        tokens = min(TOKENS, model.max_positions or TOKENS)
        long, short = max(tokens - 4, 1), max(tokens - 6, 1)
        ids = torch.arange(3 * tokens).view(3, -1) * (5 + 2 * seed) + 3 + seed
        ids[1] = torch.arange(tokens) * 3
        ids[0, :long] = ids[1, :long]
        ids = ids.remainder(model.output_tokens).to(model.device)
        # equally long, so that nothing is padded, and without a mask
        hidden = model.trunk(input_ids=ids, use_cache=False).last_hidden_state
        logit = model.lm(input_ids=ids, use_cache=False).logits[..., :model.output_tokens]
        columns = tokens - short
        at = [[min(n - 1 + i, tokens - 2) for i in range(columns)] for n in (long, long, short)]
        return cls(
            PromptBatch.of([row[:n] for row, n in zip(ids, (long, long, short))], model.device),
            torch.stack([row[1:][i] for row, i in zip(ids, at)]),
            torch.tensor([tokens - long, min(2, tokens - long), columns], device=model.device),
            torch.stack([row[i] for row, i in zip(hidden, at)]),
            torch.stack([row[i] for row, i in zip(logit, at)]),
        )


class _Differs(Exception):
    pass


def _check(model: Any, way: str, rows: _Rows, longest: int, tolerance: float) -> None:
    """Raises if a way is not exact."""
    if way == SHARED:
        if not shared_prompt.install(model.lm):
            raise _Differs(f'its attention is {model.lm.config._attn_implementation!r}')
        if any(getattr(module, 'attn_temperature_tuning', False) for module in model.trunk.modules()):
            raise _Differs('its attention scales queries by their place in the packed row')  # Llama 4
        found = read_shared(model, rows.prompts, rows.completion, rows.length, _mask_check(longest))
    else:
        found = read_plain(model, model.lm, 'logits', rows.prompts, rows.completion, rows.length)
        found = found[..., :model.output_tokens]

    def compare(found: Tensor, wanted: Tensor, what: str) -> None:
        if found.shape != wanted.shape or not (found - wanted).abs().max() <= tolerance * wanted.abs().max():
            raise _Differs(f'{what} differ from those of rows read alone')

    for x, y, n in zip(found, rows.hidden if way == SHARED else rows.logit, rows.length):
        compare(x[:n], y[:n], 'rows read at once')
    decoding = start(model, way, rows.prompts)
    compare(decoding.logit, rows.logit[:, 0], 'prompts')
    compare(decoding.step(rows.completion[:, 0]), rows.logit[:, 1], 'first tokens')
    left = torch.tensor([0, 2], device=model.device)
    decoding.keep(left)
    compare(decoding.step(rows.completion[left, 1]), rows.logit[left, 2], 'second tokens')


def _mask_check(longest: int) -> Callable[[Callable, Optional[int]], None]:
    """What a trial of few tokens cannot show: whether a mask is causal, with a window or without, in long rows too."""

    def check(mask_function: Callable, window: Optional[int], device: torch.device) -> None:
        key = torch.arange(longest, device=device)
        query = torch.tensor([longest - 1, longest // 2, longest // 3], device=device).unsqueeze(1)
        wanted = key <= query if window is None else (key <= query) & (query - key < window)
        zero = torch.zeros(1, 1, dtype=torch.long, device=device)
        found = mask_function(zero, zero, query, key.unsqueeze(0))
        if not bool((found == wanted).all()):
            raise shared_prompt.NotShared(f'rows of {longest} tokens need another mask than a window')

    return check
