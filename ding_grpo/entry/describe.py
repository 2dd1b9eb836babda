"""What ``--help KEY`` says of a key of a config, or of a section."""
import importlib
import os
import textwrap
from functools import lru_cache
from typing import Any, Dict, List, Tuple

from ding.utils import ENV_REGISTRY

from ding_common import ConfigError, nearest
from ding_common.config.documented import Documented, DocumentedKey, Section
from ding_grpo.config.check_keys import POLICY_RULES

from .complete import OWN_ENVS

WIDTH = 100  # characters


def describe(key: str) -> List[str]:
    """Lines about a key by its dotted path, such as ``policy.learn.loss``, or about a section and its keys. The two
    environments have keys of the same names, so that there may be lines about both."""
    all_sections = sections()
    paths = {section.path for _, section in all_sections}
    section, _, name = key.rpartition('.')
    lines: List[str] = []
    for where, found in all_sections:
        if found.path == key:
            keys = [f'  {each.name} = {each.default}' for each in found.keys]
            below = sorted({p.rpartition('.')[2] for p in paths if p.rpartition('.')[0] == key})
            of_below = _wrapped(f"Sections: {', '.join(below)}.") if below else []
            lines += [f'{key}{where}', *_wrapped(found.note), *keys, *of_below]
        elif found.path == section:
            lines += [line for each in found.keys if each.name == name for line in _of_key(key, each, where)]
    if lines:
        return lines
    known = [each.name for _, found in all_sections if found.path == section for each in found.keys]
    known += [path.rpartition('.')[2] for path in paths if path.rpartition('.')[0] == section and section]
    hint = nearest(name, known) if known else nearest(key, paths)
    raise ConfigError(f'--help {key}: there is no such key; {hint}')


@lru_cache(maxsize=1)  # the sources are read
def sections() -> List[Tuple[str, Section]]:
    """Where the sections apply, in parentheses if not everywhere, and the sections."""
    envs = {kind: ENV_REGISTRY.get(kind) for kind in OWN_ENVS}
    packages = {'ding_common', *(made.__module__.partition('.')[0] for made in (*envs.values(), describe))}
    documented = Documented([os.path.dirname(importlib.import_module(name).__file__) for name in sorted(packages)])
    found = [('', s) for s in documented.sections('KEYS', 'policy')]
    found += [('', s) for s in documented.sections('GroupCollector', 'policy.collect.collector')]
    return found + [(f' ({kind})', s) for kind, env in envs.items() for s in documented.sections(env.__name__, 'env')]


def _of_key(path: str, key: DocumentedKey, where: str) -> List[str]:
    rules: Dict[str, Any] = {f'policy.{below}': rule for below, rule in POLICY_RULES.items()}
    allowed = _wrapped(f'Allowed: {rules[path].allowed}.') if path in rules else []
    meaning = _wrapped(key.meaning.replace('``', ''))
    return [f'{path}{where} ({key.type}), default {key.default}', *meaning, *allowed]


def _wrapped(text: str) -> List[str]:
    return textwrap.wrap(text, WIDTH, initial_indent='  ', subsequent_indent='  ')
