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


def collects_as_written(policy: Any) -> bool:
    """Whether collecting with a policy of grpo is what its actor does, because no subclass changes it."""
    names = ('_forward_collect', '_process_transition', '_get_train_sample', '_reset_collect')
    return all(getattr(type(policy), name).__module__ == 'ding_grpo.policy' for name in names)
