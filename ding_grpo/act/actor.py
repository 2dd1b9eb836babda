"""The interface between the policy and a model, for any kind of actions."""
from contextlib import nullcontext
from typing import Any, ContextManager, Dict, List, NamedTuple, Optional, Protocol, Tuple

from torch import Tensor, nn

from ding_grpo.data.batch import Batch
from ding_grpo.data.row_generators import RowGenerators, RowKey

from .trees import Trees

Forced = Dict[int, Any]  # actions by step


class Reading(NamedTuple):
    """What a model computes for the steps of a batch, (B, S) each, arbitrary after a row's end."""
    logp: Tensor  # log-probabilities of the actions, in nats
    entropy: Tensor  # of the distributions
    value: Optional[Tensor] = None  # of the states; None without a critic
    squares: Optional[Tensor] = None  # sums of the squared probabilities of all actions, without a gradient; if asked
    divergence: Optional[Tensor] = None  # from the teacher's distribution; None without one
    teacher_kl: Optional[Tensor] = None  # KL(policy || teacher), without a gradient


class Wanted(NamedTuple):
    """What to read beside log-probabilities and entropies."""
    train_entropy: bool = False  # whether entropies have a gradient
    critic: Optional[nn.Module] = None  # whose values, one of ``make_critic``
    squares: bool = False
    teacher: Optional[Any] = None  # the divergence from it, for language models


class Actor(Protocol):
    """Samples actions from a model and computes their log-probabilities. ``TokenActor`` does so for language models,
    whose actions are whole completions, ``StepActor`` for all others."""
    length_name: str  # metric: length of a row
    rate_name: str  # metric: steps per second
    seed: int  # of the run
    exact: bool  # whether sampler and learner agree up to a rounding error far below any clipping range
    max_length: Optional[int] = None  # number of steps of a row, None without a limit
    spec: Optional[NamedTuple] = None  # the ``token_spec`` of the environment, None without one
    has_adapters: bool = False  # whether only adapters are trained, so that the model without them is the reference

    def without_adapters(self, model: nn.Module) -> ContextManager:
        """Switches the adapters of a model off."""
        return nullcontext()

    def reseed(self, seed: int) -> None:
        """Draw the random numbers of another seed from now on."""
        self.seed, self._generators = seed, RowGenerators(seed)

    def check_learning(self, cfg: Dict) -> None:
        """Raise a ``ConfigError`` if ``cfg``, the section ``policy``, does not fit the model."""

    def bind(self, spec: Optional[NamedTuple], spaces: Optional[Tuple]) -> None:
        """Receive the facts about the environment that acting and learning need: its ``token_spec``, None without one,
        and the spaces of its observations and actions. Raises a ``ConfigError`` if environment and model do not fit."""

    def bind_reference(self, reference: nn.Module) -> None:
        """Give a copy of the model what ``bind`` gave the model."""

    def prepare(self) -> None:
        """What the next call of ``sample`` would do first, such as to start a server. Called before a fork."""

    def sample(
            self,
            obs: Dict[int, Any],
            row_keys: Optional[Dict[int, RowKey]] = None,
            forced: Dict[int, Forced] = {},
            enough: Optional[int] = None,
            trees: Optional[Trees] = None
    ) -> Dict[int, Dict[str, Any]]:
        """Sample an action for each environment. Together with the run's seed, (collect, group, row) of ``row_keys``
        seeds the row's random numbers, which therefore do not depend on the other rows; None: take the most probable
        action or token. ``forced``: by environment, the actions that are taken whatever is sampled, by step from now
        on, 0 for the first; ignored if the row ends before it. ``enough``, for language models: number of rows of a
        group that count, the first to end; None for all. ``trees``, for language models: which rows are the same until
        they divide; None: each is sampled by itself. Returns by environment ``action``, ``logp`` and other entries that
        ``transition`` needs; with ``enough`` also ``dropped``, whether the row does not count. Raises a
        ``NumericError`` if the model's output is NaN or infinite."""

    def evaluating(self) -> ContextManager:
        """Context of evaluations."""
        return nullcontext()

    def aside(self) -> ContextManager:
        """Context of reads as learning reads that change neither statistics of the model nor random states."""
        return nullcontext()

    def forget(self, env_ids: Optional[List[int]]) -> None:
        """Drop the random numbers of environments whose episode has ended; None for all."""
        self._generators.forget(env_ids)

    def close(self) -> None:
        """End what sampling has started."""

    def transition(self, obs: Any, output: Dict[str, Any], timestep: Any) -> Dict[str, Any]:
        """One step of one environment, in the form that ``fold_group`` needs."""

    def read(self, model: nn.Module, batch: Batch, wanted: Wanted = Wanted()) -> Reading:
        """Log-probabilities of a batch's actions under the distributions that they were sampled from, and the entropies
        of these distributions, with the weights of ``model``, the policy or its reference. The batch is on the model's
        device."""

    def make_critic(self, cfg: Dict) -> nn.Module:
        """The critic for ``cfg``, the section ``policy.learn``. Raises a ``ConfigError`` if the model has no values, or
        ``learn.critic`` is invalid."""

    def value(self, model: nn.Module, batch: Batch, critic: nn.Module) -> Tensor:
        """Values (B, S) of the states before each step."""

    def final_value(self, model: nn.Module, batch: Batch, critic: nn.Module) -> Tensor:
        """Values (B, ) of the states after rows that a time limit truncated, 0 for all others. Called if rows have a
        last observation."""

    def state_dict(self) -> Dict[str, Any]:
        """The state that a checkpoint keeps in addition to the weights."""
        return {}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore ``state_dict``; values that a checkpoint lacks do not change."""

    def memory_advice(self, cfg: Dict) -> str:
        """How to reduce the memory of learning, as sentences for an error message."""
