"""Terms of the loss besides the policy's, each in a file of its own, which is imported if the config asks for it."""
from importlib import import_module
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from torch import Tensor, nn

from ding_grpo.act.actor import Actor
from ding_grpo.data.batch import Batch
from ding_grpo.rl_utils import LossConfig


class Setting(NamedTuple):
    """What a term is made from."""
    cfg: Dict  # the section ``policy``
    loss_config: LossConfig  # of the policy's loss
    actor: Actor
    model: nn.Module


class ExtraLoss:
    """A term of the loss. It adds to the loss of a part of the rows, or learns from rows of its own, or both."""
    reads: Tuple[str, ...] = ()  # entries of ``Reading`` that it needs of the rows
    logged: Tuple[str, ...] = ()  # metrics that DI-engine's learner logs
    undivided = False  # whether it needs all rows of a mini-batch at once

    def heads(self) -> Dict[str, Any]:
        """Fields of ``Wanted`` that give what it reads."""
        return {}

    def parameters(self) -> List[nn.Parameter]:
        """Weights of its own, which are trained with the model's."""
        return []

    def bind(self, spec: Any) -> None:
        """Receive the environment's ``token_spec``, None without one."""

    def begin(self, update: int) -> None:
        """Called before each update, with its number."""

    def prepare(self, batch: Batch, read_rows: Callable) -> Batch:
        """The rows of whole groups before they are compared. ``read_rows`` is that of the updater."""
        return batch

    def of_batch(self, learned: Batch) -> Dict[str, float]:
        """Metrics of the rows that an update learns from."""
        return {}

    def trained(self, parameters: List[nn.Parameter]) -> List[nn.Parameter]:
        """The parameters that a step trains, of all."""
        return parameters

    def add(self, loss: Tensor, part: Batch, found: Any, tokens: Optional[float], share: float) -> Tensor:
        """The loss of a part of the rows, with this term; ``loss`` is without it, ``found`` what the model computes for
        them. ``tokens``: number of tokens of the mini-batch, if losses are divided by it. ``share``: otherwise the
        share of the part in the rows of the mini-batch, else 1."""
        return loss

    def learn_more(self, rows: int, seed: int, learn: Callable) -> Optional[Tensor]:
        """Add the gradients of rows of its own, and return what the processes of a run have to add up. ``rows``: number
        of rows of the mini-batch. ``seed``: of the random numbers of this step. ``learn`` adds the gradients of a
        batch, given it, its loss as a function of log-probabilities and a part, and whether the loss is a mean over
        rows; it returns the batch on the model's device, and its log-probabilities."""

    def metrics(self, total_loss: float, batch: Batch, read: Dict[str, Tensor]) -> Dict[str, float]:
        """Metrics of a step; ``total_loss`` is the loss so far, ``read`` what was read of the rows, (B, S) by name."""
        return {}

    def state_dict(self) -> Dict[str, Any]:
        """What a checkpoint keeps of it, by entry."""
        return {}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore ``state_dict`` from all of a checkpoint."""


class Asked(NamedTuple):
    """When a config asks for a term of the loss, or for an observer, and its class as ``module:name``."""
    by: Callable[[Dict], bool]
    path: str


# In this order; 'chord' scales the policy's loss alone, so it comes first.
EXTRA_LOSSES: Dict[str, Asked] = dict(
    chord=Asked(
        lambda cfg: cfg.learn.demonstrations.share > 0 and cfg.learn.demonstrations.schedule.peak > 0,
        'ding_grpo.extras.chord:ChordLoss'
    ),
    teacher=Asked(
        lambda cfg: cfg.teacher is not None and 'pretrained' in cfg.teacher, 'ding_grpo.extras.teacher:TeacherLoss'
    ),
    self_teacher=Asked(
        lambda cfg: cfg.teacher is not None and 'pretrained' not in cfg.teacher,
        'ding_grpo.extras.self_teacher:SelfTeacherLoss'
    ),
    demonstrations=Asked(
        lambda cfg: cfg.learn.demonstrations.share > 0 and cfg.learn.demonstrations.schedule.peak == 0,
        'ding_grpo.extras.demonstrations:DemonstrationLoss'
    ),
    environment_tokens=Asked(
        lambda cfg: cfg.learn.environment_tokens.weight > 0, 'ding_grpo.extras.environment_tokens:EnvironmentLoss'
    ),
    preference=Asked(lambda cfg: cfg.learn.preference.weight > 0, 'ding_grpo.extras.preference:PreferenceLoss'),
    critic=Asked(lambda cfg: cfg.learn.advantage == 'gae', 'ding_grpo.extras.value_loss:ValueLoss'),
)


def make_asked(table: Dict[str, Asked], given: Any) -> Dict[str, Any]:
    """What the config ``given.cfg`` asks for of a table, in its order, each made from ``given``."""
    return {name: load(asked.path)(given) for name, asked in table.items() if asked.by(given.cfg)}


def load(path: str) -> Any:
    module, _, name = path.partition(':')
    return getattr(import_module(module), name)
