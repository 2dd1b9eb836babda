"""What a user's functions see of a run: updates, evaluations, checkpoints."""
from typing import Any, Callable, Dict, NamedTuple, Optional, Union

from ding.worker import LearnerHook

from ding_grpo.learn.observer import Observer
from ding_grpo.logs.hook import CallHook
from ding_grpo.run.parts import Parts

OnNumbers = Callable[[Any, Dict[str, float]], Any]


class Callbacks(NamedTuple):
    """Functions of a run, whose first argument is the object ``GRPO``. An exception of theirs ends the run, saved."""
    update: Union[OnNumbers, LearnerHook, None] = None  # and a dict of numbers, of which one is ``update``
    evaluation: Optional[OnNumbers] = None  # and the record of the evaluation
    checkpoint: Optional[Callable[[Any, str], Any]] = None  # and its path

    def observe(self, agent: Any, parts: Parts) -> None:
        """Call the functions in the run of these parts."""
        hook = self.update
        if callable(hook) and not isinstance(hook, LearnerHook):

            def after_iter(engine: Any) -> None:
                self.update(agent, {**engine.log_buffer['scalar'], 'update': engine.last_iter.val + 1})

            hook = CallHook('on_update', 12, position='after_iter', function=after_iter)
        if hook is not None:
            parts.learner.register_hook(hook)
        parts.policy.observers['callbacks'] = _Called(self, agent, parts)


class _Called(Observer):

    def __init__(self, callbacks: Callbacks, agent: Any, parts: Parts) -> None:
        self._callbacks, self._agent, self._parts = callbacks, agent, parts

    def evaluated(self, greedy: float, sampled: Optional[float], cut_at_bar: float = 0.0) -> None:
        if self._callbacks.evaluation is not None:
            self._callbacks.evaluation(self._agent, dict(self._parts.evaluator.record))

    def saved(self, path: str) -> None:
        if self._callbacks.checkpoint is not None:
            self._callbacks.checkpoint(self._agent, path)
