"""What a run runs on: the processor, and the packages beneath this one, with the versions that were tested."""
import os
import platform
import re
from functools import lru_cache
from importlib import metadata
from importlib.metadata import PackageNotFoundError, requires
from typing import Dict, List, Optional, Sequence

import torch
from packaging.requirements import Requirement

from . import parallel

NAME = 'ding-grpo'
# Installed versions beyond their bounds make other results, or fail within a run.
BENEATH = ('DI-engine', 'transformers', 'peft')
ALL = (NAME, *BENEATH, 'torch', 'tokenizers', 'numpy', 'gguf')


@lru_cache(None)  # a run asks for the same ones at its begin and with each model folder
def version(name: str) -> Optional[str]:
    """The version of a package; None if it is not installed: an extra, or this package on the path."""
    try:
        return metadata.version(name)
    except PackageNotFoundError:
        return None


def untested(beneath: Sequence[str] = BENEATH) -> List[str]:
    """For each package ``beneath`` this one whose installed version is outside the bounds of ``setup.py``, a line that
    says so. None if this package is not installed, but on the path."""
    try:
        required = map(Requirement, requires(NAME) or ())
    except PackageNotFoundError:
        return []
    bounds: Dict[str, Requirement] = {r.name: r for r in required if r.name in beneath}
    lines = []
    for name, bound in bounds.items():
        found = version(name)
        if found is not None and not bound.specifier.contains(found, prereleases=True):
            allowed = re.sub(r'(?<=,)(?=\S)', ' ', str(bound.specifier))
            lines.append(
                f'{name} {found}: {NAME} was tested with {allowed} only. If a run fails or differs, install that: pip '
                f"install '{name}{bound.specifier}'"
            )
    return lines


def processor() -> str:
    """Name, family and model of the processor; where the system does not tell them, its architecture."""
    found: Dict[str, str] = {}
    if os.path.exists('/proc/cpuinfo'):
        with open('/proc/cpuinfo', encoding='utf-8') as f:
            first = f.read().split('\n\n')[0].splitlines()
        found = dict(map(str.strip, line.split(':', 1)) for line in first if ':' in line)
    if 'model name' not in found:
        return platform.machine()
    return f"{found['model name']}, family {found.get('cpu family')}, model {found.get('model')}"


def machine(cuda: bool) -> Dict[str, str]:
    """What decides how a run of this process rounds. ``cuda``: whether it uses a GPU."""
    found = dict(
        processor=processor(),
        instructions=torch.backends.cpu.get_cpu_capability(),
        threads=str(torch.get_num_threads()),
        processes=str(parallel.world_size()),
        Python=platform.python_version()
    )
    if cuda:
        found['GPU'] = torch.cuda.get_device_name()
    return found | {name: known for name in ALL if (known := version(name)) is not None}
