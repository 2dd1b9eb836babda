"""A learner hook that calls a function."""
from typing import Any, Callable

from ding.worker import LearnerHook


class CallHook(LearnerHook):
    """Calls ``function`` with the learner; the other arguments are those of ``LearnerHook``."""

    def __init__(self, *args: Any, function: Callable[[Any], None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._function = function

    def __call__(self, engine: 'BaseLearner') -> None:  # noqa
        self._function(engine)
