"""Observers see the updates of a run and change nothing that is trained. Each has a file of its own."""
from importlib.util import find_spec
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from torch import Tensor, nn

from ding_grpo.act.actor import Actor
from ding_grpo.data.batch import Batch

from .advantage import Advantage
from .extra_loss import Asked, make_asked


class View(NamedTuple):
    """What an observer is made from."""
    cfg: Dict  # the section ``policy``
    actor: Actor
    model: nn.Module
    updater: 'Updater'  # noqa  reads rows, and computes their loss
    reference: Optional['Reference']  # noqa
    check_run: Callable[[Dict], None]  # raises ConfigError if the policy cannot learn with a section ``policy``


class Observer:
    """Sees stages of a run, in this order: ``begin``; ``sampled`` after a collect; ``compared`` when its rows have
    advantages; ``before`` an update; ``step`` before each step of its optimizer; ``after`` the update; ``evaluated``
    after an evaluation; ``saved`` after a checkpoint."""
    notices: List[str] = []  # lines for the start of a run

    def hooks(self) -> List[Any]:
        """Learner hooks that show what it has seen."""
        return []

    def begin(self, learner: 'BaseLearner', collector: 'GroupCollector') -> None:  # noqa
        """Called before the first collect, and after a resumed run has been restored."""

    def sampled(self, groups: List['Collected']) -> None:  # noqa
        """The groups of a collect, also those that were replaced."""

    def compared(self, batch: Batch, advantage: Advantage) -> Dict[str, Tensor]:
        """Advantages of the rows by other methods, which mini-batches will have in ``other_adv``."""
        return {}

    def before(self, update: int, batch: Batch, learned: Batch) -> Dict[str, float]:
        """Metrics of an update before its first step: of all rows, and of those that it learns from."""
        return {}

    def step(self, batch: Batch, logp: Tensor) -> Dict[str, float]:
        """Metrics of a step, given its rows and their log-probabilities (B, S)."""
        return {}

    def after(self, new: Batch, learned: Batch, metrics: Dict[str, float]) -> None:
        """The rows that no earlier update has used, those that were learned from, and the metrics of the update."""

    def reference_renewed(self) -> None:
        """The reference takes other weights on purpose."""

    def evaluated(self, greedy: float, sampled: Optional[float], cut_at_bar: float = 0.0) -> None:
        """See ``Watch.evaluated``."""

    def saved(self, path: str) -> None:
        """The path of a checkpoint that the first process has written."""

    def state_dict(self) -> Dict[str, Any]:
        return {}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore ``state_dict``."""


OBSERVERS: Dict[str, Asked] = dict(
    engine=Asked(lambda cfg: (cfg.collect.engine or {}).get('type') == 'vllm', 'ding_grpo.engine.gap_check:GapCheck'),
    rows=Asked(lambda cfg: (cfg.collect.engine or {}).get('record', False), 'ding_grpo.engine.recorded:RowRecord'),
    tokens=Asked(
        lambda cfg: cfg.instruments.tokens_every is not None, 'ding_grpo.instruments.token_record:TokenRecord'
    ),
    watch=Asked(lambda cfg: True, 'ding_grpo.instruments.watch:Watch'),
    noise=Asked(lambda cfg: True, 'ding_grpo.instruments.noise_scale:NoiseScale'),
    shadow=Asked(lambda cfg: bool(cfg.instruments.shadow), 'ding_grpo.instruments.shadow:Shadow'),
    card=Asked(lambda cfg: True, 'ding_grpo.sharing.card:Card'),
    digests=Asked(lambda cfg: cfg.instruments.digests, 'ding_grpo.instruments.digests:Digests'),
)


def _pass_on(stage: str) -> Callable:

    def pass_on(self: 'Observers', *args: Any) -> Dict[str, Any]:
        """Pass a stage to each observer, and join the dicts that they return."""
        found = [getattr(observer, stage)(*args) or {} for observer in self.values()]
        return {name: value for each in found for name, value in each.items()}

    return pass_on


class Observers(Dict[str, Observer]):
    """The observers of a run by name, which see each stage in this order."""
    begin, sampled, compared, before, step, after, reference_renewed, evaluated, saved = map(
        _pass_on,
        ('begin', 'sampled', 'compared', 'before', 'step', 'after', 'reference_renewed', 'evaluated', 'saved')
    )

    @classmethod
    def of(cls, view: View) -> 'Observers':
        """Those that the config asks for. A copy of this package without ``instruments/`` has none."""
        return cls() if find_spec('ding_grpo.instruments') is None else cls(make_asked(OBSERVERS, view))

    def hooks(self) -> List[Any]:
        return [hook for observer in self.values() for hook in observer.hooks()]

    def state_dict(self) -> Dict[str, Any]:
        return {name: state for name, observer in self.items() if (state := observer.state_dict())}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        for name, observer in self.items():
            observer.load_state_dict(state.get(name, {}))
