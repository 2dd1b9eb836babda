"""The config of a run, and what differs in it from the defaults."""
import os
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ding.utils import ENV_REGISTRY, POLICY_REGISTRY, SERIAL_COLLECTOR_REGISTRY, import_module

from ding_common import ConfigError, read_total_config

# What DI-engine adds to a config while it compiles it.
_ADDED = ('cfg_type', 'import_names')


class Setting(NamedTuple):
    """
    Overview:
        A key, its value and its default as text. ``default`` is None if the key has no default. ``differs`` if the \
        value is not the default.
    """
    key: str
    value: str
    default: Optional[str]
    differs: bool


def read_settings(folder: str) -> Optional[List[Setting]]:
    """
    Overview:
        All keys of a run's config.
    Arguments:
        - folder (:obj:`str`): Of the run.
    Returns:
        - settings (:obj:`Optional[List[Setting]]`): None if its ``total_config.py`` is missing or cannot be read.
    """
    try:
        cfg = read_total_config(folder)
    except ConfigError:
        return None
    defaults = dict(_leaves(_defaults(cfg)))
    settings = []
    for key, value in _leaves(cfg):
        default = defaults.get(key, _NOTHING)
        known = None if default is _NOTHING else repr(default)
        settings.append(Setting(key, repr(value), known, default is _NOTHING or value != default))
    return settings


_NOTHING = object()


def _defaults(cfg: Dict[str, Any]) -> Dict[str, Any]:
    """The defaults of the classes that a config names, as far as they are registered here."""
    policy = _default(POLICY_REGISTRY, cfg['policy'].get('type', ''), cfg['policy'].get('import_names'))
    collector = cfg['policy'].get('collect', {}).get('collector', {}).get('type', '')
    policy.setdefault('collect', {})['collector'] = _default(SERIAL_COLLECTOR_REGISTRY, collector, None)
    return dict(env=_default(ENV_REGISTRY, cfg['env'].get('type', ''), cfg['env'].get('import_names')), policy=policy)


def _default(registry: Any, name: str, modules: Optional[List[str]]) -> Dict[str, Any]:
    try:
        import_module(modules or [])
        found = registry.get(name)
    except (ImportError, KeyError):  # a class of a user's module that is not installed here
        return {}
    return found.default_config() if hasattr(found, 'default_config') else {}


def _leaves(value: Dict[str, Any], path: str = '') -> Iterator[Tuple[str, Any]]:
    for key, x in value.items():
        if key in _ADDED:
            continue
        if isinstance(x, dict) and x:
            yield from _leaves(x, f'{path}{key}.')
        else:
            yield f'{path}{key}', x
