"""Who turns prompts into rows of tokens: the model itself, or something else with a copy of its weights."""
from importlib import import_module
from typing import Dict, List, NamedTuple, Optional, Protocol, Sequence, Tuple

import click
from torch import Tensor

from ding_common import parallel
from ding_grpo.data.row_generators import RowKey
from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.rollout import Branching, EarlyStop, Rollout, Sampling, generate

from .kept_cache import KeptCache


class RowRequest(NamedTuple):
    """B rows, each to be continued to the end of its completion, or of its next turn."""
    env_ids: List[int]  # of the rows' environments
    prompts: List[Tensor]  # all tokens of each row so far, (L_i, ) int64, on the CPU
    row_keys: Dict[int, RowKey] = {}  # by environment, see ``Actor.sample``
    uniform: Optional[Tensor] = None  # (B, T) random numbers in [0, 1), of each token one; None: the most probable
    limit: Optional[Tensor] = None  # (B, ), largest number of tokens of each row; None: ``max_new_tokens`` for all
    forced: Dict[Tuple[int, int], int] = {}  # tokens that are taken, by row and place in what is sampled
    early_stop: Optional[EarlyStop] = None  # ends rows that do not count; None: all count
    branching: Optional[Branching] = None  # which rows are the same so far; None: each is sampled by itself


class Newest(Protocol):
    """The weights of a process that learns meanwhile, for one that samples."""
    steps: int  # number of optimizer steps before the weights that the model has here
    has_newer: bool

    def take(self) -> None:
        """Take the newest weights."""


class Sampler(Protocol):
    """Turns prompts into rows, with the weights that it has loaded last. The tokens and log-probabilities that it
    returns are learned from: both must be those of the distribution of its ``Sampling``."""
    exact: bool = True  # whether the learner computes the same log-probabilities, up to rounding in float32
    newest: Optional[Newest] = None  # weights to take while rows are sampled, see ``policy.collect.in_flight``

    def bind(self, spec: NamedTuple, sampling: Sampling) -> None:
        """Receive the environment's ``token_spec``, by which completions end, and the distribution to sample from."""

    def load(self, weights: Dict[str, Tensor], version: int) -> None:
        """Take the weights of ``CausalLM.state_dict``, which change in place afterwards. ``version`` differs from that
        of the call before; it is not called again while the weights stay the same."""

    def sample(self, request: RowRequest) -> Rollout:
        """Continue rows. Results are in the order of the request, on any device."""

    def forget(self, env_ids: Optional[Sequence[int]]) -> None:
        """Drop what is kept of rows whose episode has ended; None for all."""

    def close(self) -> None:
        """End what the sampler has started."""


# By the type of ``policy.collect.engine``, imported when a config asks for it.
ENGINES = dict(vllm='ding_grpo.engine.vllm:VllmSampler', recorded='ding_grpo.engine.recorded:RecordedSampler')


def make_sampler(cfg: Dict, model: CausalLM) -> Sampler:
    """The sampler that the section ``policy`` of a config asks for."""
    if cfg.collect.engine is None:
        return ModelSampler(model)
    module, _, name = ENGINES[cfg.collect.engine['type']].partition(':')
    return getattr(import_module(module), name)(cfg, model)


class ModelSampler(Sampler):
    """The model that is trained. It has its own weights, and keeps keys and values between the turns of a row."""

    def __init__(self, model: CausalLM) -> None:
        self._model, self._cache = model, KeptCache(model)
        self._told = False  # that conversations are read again

    def bind(self, spec: NamedTuple, sampling: Sampling) -> None:
        self._spec, self._sampling = spec, sampling

    def sample(self, request: RowRequest) -> Rollout:
        spec, shared = self._spec, request.branching is not None and request.branching.shared
        continued = self._keeps_cache() and not shared  # rows that are the same are one line, which it cannot keep
        rollout = generate(
            self._cache.begin(request.env_ids, request.prompts) if continued else self._model,
            PromptBatch.of(request.prompts, self._model.device),
            spec.max_new_tokens,
            spec.eos_token_ids,
            self._sampling,
            request.uniform,
            request.limit,
            spec.ends,
            request.forced,
            request.early_stop,
            merge=not continued,  # the lines of rows that wait for their next turn stay as they are
            branching=request.branching
        )
        if continued:
            self._cache.end(rollout.action, rollout.length)
        return rollout

    def forget(self, env_ids: Optional[Sequence[int]]) -> None:
        self._cache.forget(env_ids)

    def _keeps_cache(self) -> bool:
        """Whether rows keep what they have read for their next turn."""
        if self._spec.max_turns == 1 or self._model.shares_prompts:
            return self._spec.max_turns > 1
        if not self._told and parallel.rank() == 0:
            click.echo(
                f'env.max_turns = {self._spec.max_turns}: {type(self._model.lm).__name__} cannot share prompts, so '
                'every turn reads its whole conversation again, which takes longer'
            )
        self._told = True
        return False
