from typing import Any, Optional

from ding.utils import POLICY_REGISTRY


def group_policy(mode: Any) -> Optional[Any]:
    """The policy behind one of its modes, if it learns from whole groups, else None. DI-engine hands on modes only,
    whose ``get_attribute`` reads this one attribute."""
    try:
        return mode.get_attribute('group_policy')
    except (AttributeError, NotImplementedError):
        return None


def is_grpo(kind: Any) -> bool:
    """Whether a registered policy, or its class with DI-engine's commands, is grpo or derives from it."""
    return kind in POLICY_REGISTRY and getattr(POLICY_REGISTRY.get(kind), 'learns_from_groups', False)


def collects_as_written(mode: Any) -> bool:
    """Whether the collect mode of a policy does what its actor does: no subclass has changed it, and no caller, as a
    replay does."""
    own = (mode.forward, mode.process_transition, mode.get_train_sample, mode.reset)
    return all(getattr(function, '__module__', None) == 'ding_grpo.policy' for function in own)
