from typing import Any, Optional

from ding.utils import POLICY_REGISTRY

from ding_common import ConfigError


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


def check_grpo(run: str, kind: Any) -> None:
    """Raise ``ConfigError`` unless the policy of a run's folder is one of grpo."""
    if not is_grpo(kind):
        name = str(kind).removesuffix('_command')  # DI-engine's own ending
        raise ConfigError(f'RUN = {run!r}: is a run of policy.type = {name!r}, must be one of grpo.')


def collects_as_written(mode: Any) -> bool:
    """Whether the collect mode of a policy does what its actor does: no subclass has changed it, and no caller, as a
    replay does."""
    own = (mode.forward, mode.process_transition, mode.get_train_sample, mode.reset)
    return all(getattr(function, '__module__', None) == 'ding_grpo.policy' for function in own)
