from typing import Any


def learns_from_groups(policy: Any) -> bool:
    """
    Overview:
        Whether a policy learns from whole groups, which it declares by ``_learns_from_groups``. Others have no such \
        attribute.
    Arguments:
        - policy (:obj:`NamedTuple`): A mode of a DI-engine policy.
    """
    try:
        return policy.get_attribute('learns_from_groups')
    except NotImplementedError:
        return False
