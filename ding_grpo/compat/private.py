"""Access to private state of DI-engine 0.5.3 that the workers need, each function with the reason."""
import inspect
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

LIMITS = ('max_train_iter', 'max_env_step')
_running: List[Tuple[str, Dict[str, int]]] = []  # name and limits of each running pipeline, the innermost last


def disable_auto_reset(manager: Any) -> None:
    """Stop an env manager from resetting an environment at the end of its episode. It does so in threads, whose errors
    leave the run waiting forever. The reset is also wasted: a group is reset as a whole with its seed."""
    manager._auto_reset = False


def step_timeout(manager: Any) -> Optional[int]:
    """The time limit of an env manager's ``step`` in seconds, None without one. A manager does not give its config."""
    return manager._step_timeout


def remove_hooks(learner: Any, *names: str) -> None:
    """Remove hooks from a learner. It adds default hooks whatever its config says, and has no method to remove them."""
    for hooks in learner._hooks.values():
        hooks[:] = [hook for hook in hooks if hook.name not in names]


def find_hook(learner: Any, position: str, kind: type) -> Optional[Any]:
    """Find a learner's hook by type. A learner does not list its hooks, and a checkpoint must save the state of one."""
    return next((hook for hook in learner._hooks[position] if isinstance(hook, kind)), None)


def after_train(learner: Any, call: Callable[[Any, List[Dict[str, Any]]], None]) -> None:
    """Call a function after each update, with the learner and the metrics of every mini-batch. A learner calls its
    hooks after each mini-batch, and they cannot know which one is the last of the update."""
    train = learner.train

    @wraps(train)
    def train_and_call(*args, **kwargs) -> Any:
        metrics = train(*args, **kwargs)
        call(learner, metrics)
        return metrics

    learner.train = train_and_call


def pushed(buffer: Any) -> int:
    """How often something was pushed into a replay buffer, which it does not tell; 0 without a buffer."""
    return getattr(buffer, '_push_count', 0)


def restore_priorities(buffer: Any, data: List[Any]) -> None:
    """Restore the priorities of a replay buffer. It stores them in trees that loading its state does not rebuild."""
    for item in data:
        if item is not None and hasattr(buffer, '_set_weight'):
            buffer._set_weight(item)


@contextmanager
def running(pipeline: Callable, *args: Any, **kwargs: Any) -> Iterator[None]:
    """Store the name and the limits of a pipeline while it runs. The pipeline does not pass them to its components."""
    bound = inspect.signature(pipeline).bind(*args, **kwargs)
    bound.apply_defaults()
    limits = {name: bound.arguments[name] for name in LIMITS if name in bound.arguments}
    _running.append((pipeline.__name__, limits))
    try:
        yield
    finally:
        _running.pop()


def limits(learn: Dict) -> Dict[str, int]:
    """The limits of the running pipeline and of ``learn.num_updates``. The bare ``ding`` command imports the pipelines
    before this plugin can replace them. For its runs the limits are read from the stack frame of the pipeline, which
    called this code."""
    if _running:
        found = dict(_running[-1][1])
    else:
        frame = _frame_of_pipeline()
        found = {} if frame is None else {name: frame.f_locals[name] for name in LIMITS if name in frame.f_locals}
    if learn.num_updates is not None:
        found['max_train_iter'] = min(learn.num_updates, found.get('max_train_iter', learn.num_updates))
    return found


def pipeline() -> str:
    """The name of the running pipeline, found as in ``limits``; empty if none runs. ``serial_pipeline`` trains from a
    replay buffer."""
    if _running:
        return _running[-1][0]
    frame = _frame_of_pipeline()
    return '' if frame is None else frame.f_code.co_name


def is_bare() -> bool:
    """Whether the bare ``ding`` command runs a pipeline, which this plugin's patches of the pipelines do not reach."""
    return not _running and _frame_of_pipeline() is not None


def _frame_of_pipeline() -> Optional[FrameType]:
    frame = inspect.currentframe()
    while frame is not None and not _is_pipeline(frame):
        frame = frame.f_back
    return frame


def is_running(frame: Optional[FrameType]) -> bool:
    """
    Overview:
        Whether a signal arrived while a pipeline was running, or after one that failed and left its handlers.
    Arguments:
        - frame (:obj:`Optional[FrameType]`): Stack frame of the signal, in which to search for a pipeline of the bare \
            ``ding`` command.
    """
    if _running:
        return True
    while frame is not None:
        if _is_pipeline(frame):
            return True
        frame = frame.f_back
    return False


def _is_pipeline(frame: FrameType) -> bool:
    return frame.f_code.co_name.startswith('serial_pipeline')
