"""The interface of loggers: other places for the scalars that a run writes to TensorBoard."""
import uuid
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Callable, Dict, Optional

from ding.utils.registry import Registry

from ding_common import Rule

LOGGER_REGISTRY = Registry()


class RunLogger(ABC):
    """
    Overview:
        Receives all scalars that a run writes to TensorBoard. A class registered in ``LOGGER_REGISTRY`` is switched on
        by ``policy.learn.learner.hook.report.ext_args.NAME = dict(...)``, a dict with some of its ``options``.
    Arguments:
        - cfg (:obj:`Dict`): The values of all ``options``.
    """
    package: Optional[str] = None  # which pip installs and Python imports, if the logger needs one
    options: Dict[str, Any] = dict(project='ding-grpo')
    rules: Dict[str, Rule] = {}

    def __init__(self, cfg: Dict) -> None:
        self.cfg = cfg

    @abstractmethod
    def begin(self, folder: str, config: Dict) -> str:
        """Begin a run, or continue one that is resumed, given the absolute path of its folder and the policy's config.
        Returns where to see it, for the screen. Only the first process calls this."""

    @abstractmethod
    def scalars(self, values: Dict[str, float], axis: str, at: int) -> None:
        """Write values by their tags in TensorBoard, at a position of the axis 'update' or 'envstep'."""

    @abstractmethod
    def end(self) -> None:
        """End the run after its last update."""


def run_id(folder: str, make: Callable[[], str] = lambda: uuid.uuid4().hex[:8]) -> str:
    """The identity of a run. A file in ``folder`` keeps it for when the run is resumed."""
    path = Path(folder, 'id.txt')
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make())
    return path.read_text()
