"""Access to private state of DI-engine 0.5.3 that the workers need, each function with the reason."""
from typing import Any, List, Optional

from ding.envs import BaseEnvManager

from .env_manager import TogetherManager


def disable_auto_reset(manager: Any) -> None:
    """Stop an env manager from resetting an environment at the end of its episode: in threads, whose errors leave the
    run waiting forever, and in vain, since a group is reset as a whole."""
    manager._auto_reset = False


def reset_although_recording(manager: Any) -> None:
    """Let an env manager whose environments save videos reset them before an evaluation, which gives them their
    seeds. DI-engine skips this reset with a warning."""
    manager._env_replay_path = None


def step_timeout(manager: Any) -> Optional[int]:
    """The time limit of an env manager's ``step`` in seconds, None without one. A manager does not give its config."""
    return manager._step_timeout


def environments_of(manager: Any) -> Optional[List[Any]]:
    """The environments of a manager that steps them one by one in this process, which it does not give; None if it
    steps them otherwise, or watches how long they take."""
    plain = type(manager) in (
        BaseEnvManager, TogetherManager
    ) and manager._step_timeout is None and manager._reset_timeout is None
    return manager._envs if plain and manager._max_retry == 1 else None


def pushed(buffer: Any) -> int:
    """How often something was pushed into a replay buffer, which it does not tell; 0 without a buffer."""
    return getattr(buffer, '_push_count', 0)


def restore_priorities(buffer: Any, data: List[Any]) -> None:
    """Restore the priorities of a replay buffer. It stores them in trees that loading its state does not rebuild."""
    for item in data:
        if item is not None and hasattr(buffer, '_set_weight'):
            buffer._set_weight(item)
