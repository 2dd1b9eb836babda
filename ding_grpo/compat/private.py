"""What the workers need of DI-engine 0.5.3 and it does not offer, each with the reason."""
import inspect
from contextlib import contextmanager
from types import FrameType
from typing import Any, Callable, Dict, Iterator, List, Optional

LIMITS = ('max_train_iter', 'max_env_step')
_running: List[Dict[str, int]] = []  # limits of the pipelines that run in this process, the innermost last


def disable_auto_reset(manager: Any) -> None:
    """
    Overview:
        An env manager resets an environment at the end of its episode, in threads whose errors leave the run waiting \
        forever. A group is reset as a whole with its seed, so that such a reset is wasted anyway.
    """
    manager._auto_reset = False


def remove_hooks(learner: Any, *names: str) -> None:
    """
    Overview:
        A learner adds default hooks whatever its config says, and has no method that removes them.
    """
    for hooks in learner._hooks.values():
        hooks[:] = [hook for hook in hooks if hook.name not in names]


def find_hook(learner: Any, kind: type) -> Optional[Any]:
    """
    Overview:
        A learner does not list its hooks, one of which has state that a checkpoint must keep.
    """
    return next((hook for hook in learner._hooks['after_iter'] if isinstance(hook, kind)), None)


def restore_priorities(buffer: Any, data: List[Any]) -> None:
    """
    Overview:
        A replay buffer with priorities keeps them in trees that its state does not rebuild.
    """
    for item in data:
        if item is not None and hasattr(buffer, '_set_weight'):
            buffer._set_weight(item)


@contextmanager
def running(pipeline: Callable, *args: Any, **kwargs: Any) -> Iterator[None]:
    """
    Overview:
        While a pipeline runs: keep its limits, which it tells none of its parts.
    """
    bound = inspect.signature(pipeline).bind(*args, **kwargs)
    bound.apply_defaults()
    _running.append({name: bound.arguments[name] for name in LIMITS if name in bound.arguments})
    try:
        yield
    finally:
        _running.pop()


def limits() -> Dict[str, int]:
    """
    Overview:
        The limits of the running pipeline. The bare ``ding`` command has imported the pipelines before this plugin \
        could replace them. For its runs they are read from the pipeline's frame, whose function made the caller.
    """
    if _running:
        return _running[-1]
    frame = inspect.currentframe()
    while frame is not None and not _is_pipeline(frame):
        frame = frame.f_back
    return {} if frame is None else {name: frame.f_locals[name] for name in LIMITS if name in frame.f_locals}


def is_running(frame: Optional[FrameType]) -> bool:
    """
    Overview:
        Whether a signal came during a pipeline, or after one that failed and left its handlers.
    Arguments:
        - frame (:obj:`Optional[FrameType]`): Of the signal. It is searched for the bare ``ding`` command's pipelines.
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
