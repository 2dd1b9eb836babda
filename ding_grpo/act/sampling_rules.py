"""The sampling distribution of a language model: from a config, and as the rules by which learning recomputes it."""
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import torch
from torch import Tensor

from ding_common import ConfigError, config_errors, import_name
from ding_grpo.config.sections.processors import PROCESSORS_KEY, processor_arguments
from ding_grpo.data.batch import Batch
from ding_grpo.rl_utils import TokenRules, unpack_bits
from ding_grpo.rl_utils.on_device import on_device
from ding_grpo.rollout import KeptSets, Sampling


def find_sampling(cfg: Dict) -> Sampling:
    """The distribution of ``cfg``, the section ``policy.collect``. ``bind_sampling`` completes it: its ``logit_bias``
    are still pairs of a token (id or text) and a number, and its grammar is the user's function."""
    processors = processor_arguments(cfg.processors)
    processors['logit_bias'] = processors.get('logit_bias') or None  # an empty one costs nothing
    name = processors.get('allowed_tokens')
    if name is not None:
        processors['allowed_tokens'] = grammar = import_name(name, PROCESSORS_KEY)
        if not callable(grammar):
            raise ConfigError(f'{PROCESSORS_KEY}: type = {name!r}: must be a function, not {type(grammar).__name__}.')
    return Sampling(cfg.temperature, cfg.top_k, cfg.top_p, **processors)


def bind_sampling(sampling: Sampling, spec: NamedTuple, device: torch.device) -> Sampling:
    """Complete a distribution from ``find_sampling`` with what depends on the environment's tokenizer."""
    if sampling.logit_bias is not None:
        of_token = torch.zeros(spec.vocab_size, device=device)
        for token, value in sampling.logit_bias:
            of_token[_token_id(token, spec)] = value
        sampling = sampling._replace(logit_bias=of_token)
    if sampling.allowed_tokens is not None:
        sampling = sampling._replace(allowed_tokens=partial(_allowed, sampling.allowed_tokens, spec))
    return sampling


def _allowed(grammar: Callable, spec: NamedTuple, prompt: List[int], tokens: List[int]) -> Optional[List[int]]:
    """The ids that a user's grammar allows, checked."""
    place = f'{PROCESSORS_KEY}: the grammar: after {len(tokens)} tokens of a turn ({tokens[-8:]}) the function'
    with config_errors(f'{place} failed', '.'):
        found = grammar(prompt, tokens, tokenizer=spec.tokenizer)
        found = found if found is None else [int(i) for i in found]
    wrong = [] if found is None else [i for i in found if not 0 <= i < spec.vocab_size]
    if wrong:
        raise ConfigError(f'{place} returned {wrong[0]}, which is not a token id from 0 to {spec.vocab_size - 1}.')
    if found == []:
        raise ConfigError(f'{place} returned no token. An end-of-sequence token lets a turn end; None allows all.')
    return found


def token_rules(sampling: Sampling, batch: Batch, vocabulary: int) -> Optional[TokenRules]:
    """What the sampler did to the logits of a batch's tokens, apart from temperature and ``kept``; None for nothing."""
    first = None if sampling.repetition_penalty == 1 else _first_seen(batch, vocabulary)
    bits = None if batch.kept_words is None else KeptSets(batch.kept_words, batch.kept_width).bits(vocabulary)
    if first is None and bits is None and sampling.logit_bias is None:
        return None
    return TokenRules(sampling.logit_bias, sampling.repetition_penalty, first, bits)


def kept_tokens(batch: Batch, vocabulary: int) -> Tensor:
    """Whether each token of the vocabulary was kept, (B, S, V), for a batch with sets of any size."""
    return unpack_bits(KeptSets(batch.kept_words, batch.kept_width).bits(vocabulary), slice(0, vocabulary))


def seen_tokens(sampling: Sampling, batch: Batch, vocabulary: int) -> Optional[Tensor]:
    """Whether a row contained each token before each of its tokens, (B, S, V); None without a repetition penalty."""
    if sampling.repetition_penalty == 1:
        return None
    position = torch.arange(batch.action.shape[1], device=batch.action.device).view(-1, 1)
    return _first_seen(batch, vocabulary).unsqueeze(1) <= position


def _first_seen(batch: Batch, vocabulary: int) -> Tensor:
    """See ``TokenRules``."""
    device, (rows, longest) = batch.action.device, batch.action.shape
    first = torch.full((rows, vocabulary), longest + 1, dtype=torch.int32, device=device)
    after = torch.arange(1, longest + 1, dtype=torch.int32, device=device).expand(rows, -1)  # a token is seen after it
    after = torch.where(after <= batch.length.unsqueeze(1), after, longest + 1)  # padding is token 0
    known = batch.action.clamp(max=vocabulary - 1)
    first.scatter_reduce_(1, known, torch.where(batch.action == known, after, longest + 1), 'amin')
    for row, prompt in zip(first, batch.prompts):
        row[on_device(prompt[prompt < vocabulary], device)] = 0
    return first


def _token_id(token: Any, spec: NamedTuple) -> int:
    where = f'{PROCESSORS_KEY}: logit_bias'
    if isinstance(token, int):
        if token >= spec.vocab_size:
            raise ConfigError(f'{where}: token {token} does not exist. The tokenizer has {spec.vocab_size} tokens.')
        return token
    ids = spec.tokenizer.encode(token, add_special_tokens=False)
    if len(ids) != 1 or spec.tokenizer.unk_token_id in ids:
        told = [spec.tokenizer.convert_ids_to_tokens(i) for i in ids]
        raise ConfigError(f'{where}: the text {token!r} is not one token of env.tokenizer, but {told}. Give its id.')
    return ids[0]
