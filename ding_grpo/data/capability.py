from typing import Any, Optional


def group_policy(mode: Any) -> Optional[Any]:
    """The policy behind one of its modes, if it learns from whole groups, else None. DI-engine hands on modes only,
    whose ``get_attribute`` reads this one attribute."""
    try:
        return mode.get_attribute('group_policy')
    except (AttributeError, NotImplementedError):
        return None
