"""Whether the packages beneath this one have versions with which it was tested."""
import re
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Dict, List

from packaging.requirements import Requirement

NAME = 'ding-grpo'
# Installed versions beyond their bounds make other results, or fail within a run.
BENEATH = ('DI-engine', 'transformers', 'peft')


def untested() -> List[str]:
    """
    For each package beneath this one whose installed version is outside the bounds of ``setup.py``, a line that says
    so. None if this package is not installed, but on the path.
    """
    try:
        required = map(Requirement, requires(NAME) or ())
    except PackageNotFoundError:
        return []
    bounds: Dict[str, Requirement] = {r.name: r for r in required if r.name in BENEATH}
    lines = []
    for name, bound in bounds.items():
        try:
            found = version(name)
        except PackageNotFoundError:  # an extra
            continue
        if not bound.specifier.contains(found, prereleases=True):
            allowed = re.sub(r'(?<=,)(?=\S)', ' ', str(bound.specifier))
            lines.append(
                f'{name} {found}: {NAME} was tested with {allowed} only. If a run fails or differs, install that: pip '
                f"install '{name}{bound.specifier}'"
            )
    return lines
