from typing import Any


def learns_from_groups(policy: Any) -> bool:
    """
    Overview:
        Whether a policy learns from whole groups. Such a policy declares ``_learns_from_groups``; other policies do \
        not have this attribute.
    Arguments:
        - policy (:obj:`NamedTuple`): A mode of a DI-engine policy.
    """
    try:
        return policy.get_attribute('learns_from_groups')
    except NotImplementedError:
        return False
