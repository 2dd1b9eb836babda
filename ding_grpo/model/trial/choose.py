"""
Finds the fastest way to read rows that gives the same results as reading each row alone. It computes in float64,
whatever the type of the weights. There, a correct way differs by rounding errors far below ``TOLERANCE``, and a wrong
way differs by far more. The choice therefore depends on the architecture, and not on its weights, their type, or
adapters.
"""
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

import click
import torch
import transformers
from torch import Tensor
from transformers.utils import logging as hf_logging

from ding_common import ConfigError, describe
from ding_common.processes.memory import memory_advice, out_of_memory
from ding_grpo.model.read.completions import read_shared, read_unshared
from ding_grpo.model.read.decoding import BY_LENGTH, PADDED, REREAD, SHARED, WAYS, NoCache, start
from ding_grpo.model.read.packed_row import NAME, NotShared, install
from ding_grpo.model.read.prompts import PromptBatch
from ding_grpo.model.read.whole import PART

from .architecture import once_for_architecture
from .float64 import in_float64
from .length_limit import TOKENS

UNLIMITED = 65536  # maximum number of tokens of a row, if neither config nor model sets one
SLOWER = {
    PADDED: 'every row reads its prompt again, which takes longer',
    BY_LENGTH: 'every row reads its prompt again, in one batch per prompt length, which takes longer',
    REREAD: 'every row is read from its start for every token, which takes much longer',
}
TOLERANCE = 1e-8  # relative to the largest number, in float64


class Trial(NamedTuple):
    """What was found: one of ``WAYS``, and the reason if it is not 'shared'. ``certain`` is False if another
    exception than those of this trial excluded a faster way, so that a resumed run should try again."""
    way: str
    reason: str = ''
    certain: bool = True


def find_way(model: Any, longest: Optional[int]) -> Optional[Trial]:
    """The fastest way in which a ``CausalLM`` can read rows of at most ``longest`` tokens, see ``choose``. It is found
    once for an architecture, and a slow one is logged for each model."""
    most = longest or model.max_positions or UNLIMITED
    what = 'way', *facts_of_way(model, longest).values(), model.output_tokens, model.device.type
    found = once_for_architecture(model.lm, what, lambda: choose(model, most))
    if found is not None and found.way == SHARED:
        install(model.lm)
    elif found is not None:
        click.echo(f'{type(model.lm).__name__}: {SLOWER[found.way]} ({found.reason})')
    return found


def facts_of_way(model: Any, longest: Optional[int]) -> Dict[str, Any]:
    """What the way depends on besides the architecture, for a checkpoint."""
    attention = model.lm.config._attn_implementation.removeprefix(f'{NAME}_')
    return dict(attention=attention, longest=longest, transformers=transformers.__version__)


@memory_advice('trying how the model can be read', 'Free some, or use a smaller model: a trial takes three rows.')
def choose(model: Any, longest: int) -> Optional[Trial]:
    """Find the fastest way in which a model, its adapters switched off, can read rows of at most ``longest`` tokens.
    None if weights are NaN or infinite, so that no trial is possible. Raises a ``ConfigError`` if, in every way, rows
    read together give other results than rows read alone; or if memory does not suffice for the trial, which says
    nothing about the architecture."""
    reasons: List[str] = []
    certain = True
    ways, arithmetic, tolerance = WAYS, in_float64, TOLERANCE
    with torch.no_grad(), model.without_adapters(), model.without_autocast(), _quiet():
        try:
            model.output_head()
        except ConfigError:  # the policy reports the reason if it matters
            ways = WAYS[1:]
            reasons.append('sharing prompts needs an output layer that is a scaled or soft-capped product')
        try:
            with in_float64():
                references = _references(model)
        except Exception as error:  # an operation does not support float64, as in a quantised layer
            _check_machine(error)
            certain = False
            # In the type of the weights, a small leak between rows would look like rounding. Prompts are not shared.
            ways, arithmetic, tolerance = WAYS[1:], nullcontext, torch.finfo(model.lm.dtype).eps ** 0.5
            reasons.append(f'it does not run in float64: {describe(error)}')
            with _refusing(model):
                references = _references(model)
        if not all(rows.logit.isfinite().all() for rows in references):
            return None
        with _refusing(model):
            _check_gradient(model, references[0].prompts.ids)
        for way in ways:
            before = model.lm.config._attn_implementation
            try:
                with arithmetic():
                    for rows in references:
                        _check(model, way, rows, longest, tolerance)
                return Trial(way, reasons[0] if reasons else '', certain)
            except Exception as error:  # an architecture that cannot be read in this way may raise anything
                _check_machine(error)
                if model.lm.config._attn_implementation != before:
                    model.lm.set_attn_implementation(before)
                known = isinstance(error, (_Differs, NotShared, NoCache))
                certain = certain and known
                reasons.append(str(error) if known else describe(error))
    raise _refusal(
        model, f'{reasons[-1]}. It must be causal, and must read rows without a cache independently of each other'
    )


def _check_machine(error: Exception) -> None:
    """Raise an exception again that says something about the machine, and nothing about the architecture."""
    if out_of_memory(error) or 'CUDA error' in str(error):
        raise error


def _refusal(model: Any, reason: str) -> ConfigError:
    return ConfigError(f'policy.model: {type(model.lm).__name__} cannot be trained: {reason}.')


@contextmanager
def _refusing(model: Any) -> Iterator[None]:
    """Turn what an architecture raises into a refusal."""
    try:
        yield
    except Exception as error:
        _check_machine(error)
        raise _refusal(model, describe(error)) from error


def _check_gradient(model: Any, ids: Tensor) -> None:
    """Raise what the architecture raises if it does not support gradients in evaluation mode, as Reformer does not."""
    with torch.enable_grad():
        hidden = model.trunk(input_ids=ids, use_cache=False).last_hidden_state
        if hidden.requires_grad:  # False if all weights are frozen
            trained = next(p for p in model.trunk.parameters() if p.requires_grad)
            torch.autograd.grad(hidden.sum(), trained, allow_unused=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the warnings of ``transformers`` during the trial."""
    before = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    try:
        yield
    finally:
        hf_logging.set_verbosity(before)


class _Reference(NamedTuple):
    """Two rows of one prompt and of one first token, and a row of a shorter prompt, with the results of reading each
    alone."""
    prompts: PromptBatch
    completion: Tensor  # (3, S)
    length: Tensor  # (3, )
    hidden: Tensor  # (3, S, H), before each token of the completion
    logit: Tensor  # (3, S, V)

    @classmethod
    def make(cls, model: Any, seed: int) -> '_Reference':
        """Another seed changes all rows but the second, whose results must not change, and the beginnings that others
        share with it."""
        tokens = min(TOKENS, model.max_positions or TOKENS)
        long, short = max(tokens - 4, 1), max(tokens - 6, 1)
        ids = torch.arange(3 * tokens).view(3, -1) * (5 + 2 * seed) + 3 + seed
        ids[1] = torch.arange(tokens) * 3
        ids[0, :long + 1] = ids[1, :long + 1]  # a prompt, and the first token of its two rows
        common = min(2, short - 1)
        ids[2, :common] = ids[1, :common]  # a common beginning of two prompts
        ids = ids.remainder(model.output_tokens).to(model.device)
        # rows of equal length, without padding and without a mask
        hidden = model.trunk(input_ids=ids, use_cache=False).last_hidden_state
        logit = model.lm(input_ids=ids, use_cache=False).logits[..., :model.output_tokens]
        columns = tokens - short
        at = [[min(n - 1 + i, tokens - 2) for i in range(columns)] for n in (long, long, short)]
        return cls(
            PromptBatch.of([row[:n] for row, n in zip(ids, (long, long, short))], model.device),
            torch.stack([row[1:][i] for row, i in zip(ids, at)]),
            torch.tensor([tokens - long, min(3, tokens - long), columns], device=model.device),
            torch.stack([row[i] for row, i in zip(hidden, at)]),
            torch.stack([row[i] for row, i in zip(logit, at)]),
        )


def _references(model: Any) -> List[_Reference]:
    return [_Reference.make(model, seed) for seed in range(2)]


class _Differs(Exception):
    pass


def _check(model: Any, way: str, rows: _Reference, longest: int, tolerance: float) -> None:
    """Raise if a way gives other results than rows read alone."""
    if way == SHARED:
        if not install(model.lm):
            raise _Differs(f'its attention is {model.lm.config._attn_implementation!r}')
        if any(getattr(module, 'attn_temperature_tuning', False) for module in model.trunk.modules()):
            raise _Differs('its attention scales queries by their position in the packed row')  # Llama 4
        given = rows.prompts, rows.completion, rows.length, partial(_check_mask, longest)
        results = [read_shared(model, *given, least=0, part=part).of_tokens() for part in (0, PART)]
    else:
        logits = read_unshared(model, model.lm, 'logits', rows.prompts, rows.completion, rows.length)
        results = [logits[..., :model.output_tokens]]

    def compare(found: Tensor, wanted: Tensor, what: str) -> None:
        if found.shape != wanted.shape or not (found - wanted).abs().max() <= tolerance * wanted.abs().max():
            raise _Differs(f'{what} differ from those of rows read alone')

    for found in results:
        for x, y, n in zip(found, rows.hidden if way == SHARED else rows.logit, rows.length):
            compare(x[:n], y[:n], 'results of rows read together')
    decoding = start(model, way, rows.prompts, least=0)
    compare(decoding.logit, rows.logit[:, 0], 'logits after prompts')
    compare(decoding.step(rows.completion[:, 0]), rows.logit[:, 1], 'logits after first tokens')
    left = torch.tensor([2, 0, 2], device=model.device)
    decoding.keep(left)
    compare(decoding.step(rows.completion[left, 1]), rows.logit[left, 2], 'logits after second tokens')
    if way == SHARED:  # the same tokens, read in turns of different lengths
        decoding, one = start(model, way, rows.prompts, least=0), torch.ones_like(rows.length)
        at = decoding.read(rows.completion[:, :2], one + torch.tensor([1, 0, 0], device=one.device))
        compare(at, rows.logit[torch.arange(3), [2, 1, 1]], 'logits after turns')
        decoding.set_read(one)
        compare(decoding.step(rows.completion[:, 1])[left], rows.logit[left, 2], 'logits after forgotten tokens')


def _check_mask(longest: int, mask_function: Callable, window: Optional[int], device: torch.device) -> None:
    """Raise if long rows have a mask other than a causal one, with or without a window. A short trial cannot see it."""
    key = torch.arange(longest, device=device)
    query = torch.tensor([longest - 1, longest // 2, longest // 3], device=device).unsqueeze(1)
    wanted = key <= query if window is None else (key <= query) & (query - key < window)
    zero = torch.zeros(1, 1, dtype=torch.long, device=device)
    if not bool((mask_function(zero, zero, query, key.unsqueeze(0)) == wanted).all()):
        raise NotShared(f'rows of {longest} tokens need a mask other than a causal one or a window')
