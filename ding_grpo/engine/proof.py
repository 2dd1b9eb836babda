"""
The proof that an engine samples with the weights that are learned: what it says of its rows is compared with what the
learner computes for them.

At the start, all weights are changed by random numbers that are large enough to be seen, sent, and compared; then the
true ones. A tensor that does not arrive, or of which the engine keeps an old copy, is found by reading the rows with
that tensor as it was before: what the engine has computed is then nearer.
"""
import re
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

import click
import torch
from torch import Tensor

from ding_common import ConfigError, PeerError
from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.rl_utils import naive_method
from ding_grpo.rollout import Rollout, Sampling

from .answers import rollout_of
from .options import KEY
from .requests import Requests

PROMPTS, PROMPT_TOKENS, TOKENS = 8, 12, 16  # of the rows that are compared at the start, at most
STRENGTH = 0.2  # of the change, see ``changed``
# nats; the mean gap that rounding in float32 stays below. Of SmolLM2-135M it was 2e-5, and a single tensor with its old
# values gave 0.04 at least.
CLEAN = 2e-3
# Of what the change of all weights does to the rows: a larger gap is no rounding in half precision. Of SmolLM2-135M in
# bfloat16 it was 0.07.
OTHER = 0.2
NEARER = 0.7  # of the gap: a reading with an old tensor that is as near as this shows that the engine has it
EXACT = 1e-3  # nats; a largest gap below it is far below any clipping range


class Gap(NamedTuple):
    """The absolute difference between the log-probabilities of two, in nats."""
    mean: float
    largest: float

    @classmethod
    def of(cls, logp: Tensor, other: Tensor, counts: Tensor) -> 'Gap':
        """``counts`` (B, S): the tokens that are compared."""
        gap = (logp.double() - other.double()).abs()[counts]
        return cls(gap.mean().item(), gap.max().item())


class Bounds(NamedTuple):
    """The largest gaps that a run accepts, as many times those of the start."""
    mean: float
    largest: float
    exact: bool  # whether ratios may be relative to the engine's log-probabilities

    @classmethod
    def of(cls, found: Gap) -> 'Bounds':
        return cls(4 * found.mean + 1e-5, 15 * found.largest + 1e-4, found.largest < EXACT)

    def hold(self, gap: Gap) -> bool:
        return gap.mean <= self.mean and gap.largest <= self.largest


def check_tokenizer(server: Any, spec: NamedTuple) -> None:
    """Raise a ``ConfigError`` if a server has another tokenizer, since then it has another model."""
    step = max(spec.vocab_size // 64, 1)
    text = spec.tokenizer.decode(list(range(0, spec.vocab_size, step)), skip_special_tokens=True)
    theirs = server.tokens_of(text)
    own = spec.tokenizer.encode(text, add_special_tokens=False)
    if theirs is not None and theirs != own:
        raise ConfigError(
            f'{KEY}: {server.url} has another tokenizer than env.tokenizer: {text[:40]!r} is {theirs[:8]}, not '
            f'{own[:8]}. Serve the model of policy.model.'
        )


def prove(sampler: Any) -> Bounds:
    """Compare an engine with the model, with changed weights and with the true ones; ``PeerError`` if they differ."""
    rows, weights = _Rows(sampler), sampler.transfer.weights()
    with changed(weights) as true:
        sampler.pool.send()
        for number, server in enumerate(sampler.pool.servers):
            rows.sample(number)
            half = server.computes_in != 'float32' or not sampler.model.exact_arithmetic
            told = explanation(rows, rows.gap(), weights, true, half)
            if told is not None:
                raise PeerError(f'{KEY}: {server.url} does not sample with the weights that it was sent: {told}')
    sampler.pool.send()
    found = []
    for number in range(len(sampler.pool.servers)):
        rows.sample(number)
        found.append(rows.gap())
    gap = Gap(*map(max, zip(*found)))
    bounds = Bounds.of(gap)
    click.echo(
        f'engine: it has the weights. Its log-probabilities differ from the learner\'s by {gap.mean:.1e} in the mean, '
        f'{gap.largest:.1e} at most; a run ends beyond {bounds.mean:.1e} or {bounds.largest:.1e}'
    )
    return bounds


class _Rows:
    """Rows of random prompts, and what the model computes for them."""

    def __init__(self, sampler: Any) -> None:
        self._sampler, spec = sampler, sampler.spec
        draw = torch.Generator().manual_seed(0)
        room = min(spec.max_prompt_length, PROMPT_TOKENS)
        self._prompts = list(torch.randint(spec.vocab_size, (PROMPTS, room), generator=draw))

    def sample(self, server: int) -> None:
        sampler, most = self._sampler, min(self._sampler.spec.max_new_tokens, TOKENS)
        params = dict(sampler.params(), max_tokens=most)
        rows = [sampler.row(p.tolist(), dict(params, seed=i)) for i, p in enumerate(self._prompts)]
        answers = Requests(sampler.pool, rows, [server] * len(rows)).answers()
        self.rollout = rollout_of(answers, sampler.sampling.top_k or 0, False)

    def tied(self, weights: Dict[str, Tensor]) -> Optional[str]:
        """The name of the embedding, if it is also the output matrix."""
        lm = self._sampler.model.lm
        if not lm.config.get_text_config().tie_word_embeddings:
            return None
        return next((name for name, w in weights.items() if w is lm.get_input_embeddings().weight), None)

    def gap(self, output: Optional[Tensor] = None) -> Gap:
        """Between the engine and the model as it is now, or with another output matrix."""
        logp = log_probs(self._sampler.model, self._sampler.sampling, self._prompts, self.rollout, output)
        counts = torch.arange(logp.shape[1]) < self.rollout.length.unsqueeze(1)
        return Gap.of(logp, self.rollout.logp, counts)


@torch.no_grad()
def log_probs(
        model: CausalLM,
        sampling: Sampling,
        prompts: List[Tensor],
        rollout: Rollout,
        output: Optional[Tensor] = None
) -> Tensor:
    """Log-probabilities (B, S) of rows, on the CPU. ``output``: an output matrix in place of the model's."""
    action, batch = rollout.action.clamp(min=0).to(model.device), PromptBatch.of(prompts, model.device)
    if output is None:
        logit = model.completion_logits(batch, action, rollout.length.to(model.device))
    else:
        head = model.output_head()
        hidden = model.completion_states(batch, action, None).of_tokens()
        logit = head._replace(weight=output[:len(head.weight)]).logits(hidden)
    kept = None if rollout.kept is None else rollout.kept.to(model.device)
    logit, index = sampling.reuse(logit, action, kept)
    return naive_method(logit, index).cpu()


@contextmanager
@torch.no_grad()
def changed(weights: Dict[str, Tensor]) -> Iterator[Dict[str, Tensor]]:
    """Context in which weights are changed by random numbers. It gives the true ones, by name."""
    draw = torch.Generator().manual_seed(0)
    true = {name: w.detach().clone() for name, w in weights.items()}
    try:
        for w in weights.values():
            # so that each layer changes what it passes on, also at the start of training
            scale = w.abs().mean() + (w.shape[-1] ** -0.5 if w.dim() > 1 else 0.1)
            w += STRENGTH * scale * torch.randn(w.shape, generator=draw).to(w)
        yield true
    finally:
        _set(weights, true)


@contextmanager
def exchanged(weights: Dict[str, Tensor], values: Dict[str, Tensor]) -> Iterator[None]:
    """Context in which some weights have other values."""
    own = {name: weights[name].detach().clone() for name in values}
    _set(weights, values)
    try:
        yield
    finally:
        _set(weights, own)


@torch.no_grad()
def _set(weights: Dict[str, Tensor], values: Dict[str, Tensor]) -> None:
    for name, value in values.items():
        weights[name].copy_(value)


def explanation(rows: _Rows, gap: Gap, weights: Dict[str, Tensor], true: Dict[str, Tensor],
                half: bool) -> Optional[str]:
    """Why an engine's log-probabilities are not those of the changed weights that the model has; None if they are, but
    for rounding. ``half``: whether one of the two computes in half precision, where only what does more than rounding
    is found."""
    if gap.mean < CLEAN:
        return None

    def with_old(names: List[str]) -> float:
        with exchanged(weights, {name: true[name] for name in names}):
            return rows.gap().mean

    everything = with_old(list(weights))
    found = {'all of them': everything}  # mean gaps, by what has its old values
    tied = rows.tied(weights)
    if tied is not None:
        found['the output matrix, which is tied to the embedding'] = rows.gap(true[tied]).mean
    found.update({kind: with_old(names) for kind, names in _kinds(weights).items()})
    wrong = gap.mean > OTHER * everything or not half
    if wrong:
        found.update({name: with_old([name]) for name in weights})
    nearest = min(found, key=found.get)
    if found[nearest] < NEARER * gap.mean:
        return (
            f'it has old values of {nearest}. With these the difference is {found[nearest]:.1e} nats in the mean, with '
            f'what was sent {gap.mean:.1e}'
        )
    if not wrong:
        return None
    return (
        f'its log-probabilities differ by {gap.mean:.1e} nats in the mean, and old weights do not explain it. It '
        'computes another function: compare its config with the model (rotary embedding, types, quantization), and '
        'start it with --logprobs-mode processed_logprobs'
    )


def _kinds(weights: Dict[str, Tensor]) -> Dict[str, List[str]]:
    """Names of weights, by their name without the numbers of layers."""
    kinds: Dict[str, List[str]] = {}
    for name in weights:
        kinds.setdefault(re.sub(r'\.\d+\.', '.*.', name), []).append(name)
    return {kind: names for kind, names in kinds.items() if len(names) > 1}
