"""The config of a run, and what differs in it from the defaults."""
from typing import Any, Dict, List, NamedTuple, Optional

from ding.utils import (
    BUFFER_REGISTRY, ENV_MANAGER_REGISTRY, ENV_REGISTRY, POLICY_REGISTRY, SERIAL_COLLECTOR_REGISTRY, deep_merge_dicts
)
from ding.worker import BaseLearner, BaseSerialCommander

from ding_common import ConfigError, read_total_config
from ding_common.config.total_config import leaves
from ding_grpo.config.key import value_at
from ding_grpo.evaluate import GroupEvaluator

# Sections whose class has a registered name, and sections that have one class. The first ones come first, because the
# classes' own defaults are merged into theirs.
_NAMED = {
    'policy': POLICY_REGISTRY,
    'env': ENV_REGISTRY,
    'env.manager': ENV_MANAGER_REGISTRY,
    'policy.collect.collector': SERIAL_COLLECTOR_REGISTRY,
    'policy.other.replay_buffer': BUFFER_REGISTRY,
}
_FIXED = {
    'policy.learn.learner': BaseLearner,
    'policy.eval.evaluator': GroupEvaluator,
    'policy.other.commander': BaseSerialCommander,
}


class Setting(NamedTuple):
    """A key, its value and its default as text. ``default`` is None if the key has no default. ``differs`` if the value
    is not the default."""
    key: str
    value: str
    default: Optional[str]
    differs: bool


def read_settings(folder: str) -> Optional[List[Setting]]:
    """All keys of a run's config; None if its ``total_config.py`` is missing or cannot be read."""
    try:
        cfg = read_total_config(folder)
    except ConfigError:
        return None
    defaults = dict(leaves(defaults_of(cfg)))
    settings = []
    for key, value in leaves(cfg):
        if key == 'policy.type':
            value = str(value).removesuffix('_command')  # DI-engine's pipelines add it
        known = key in defaults
        default = repr(defaults[key]) if known else None
        settings.append(Setting(key, repr(value), default, not known or value != defaults[key]))
    return settings


def defaults_of(cfg: Dict[str, Any]) -> Dict[str, Any]:
    """The defaults of the classes that a config names, as far as they are registered here."""
    found: Dict[str, Any] = {}
    classes = {path: _registered(registry, cfg, path) for path, registry in _NAMED.items()}
    for path, cls in {**classes, **_FIXED}.items():
        values = cls.default_config() if hasattr(cls, 'default_config') else {}
        for name in reversed(path.split('.')):
            values = {name: values}
        found = deep_merge_dicts(values, found)  # a policy's defaults for a part of a run replace the part's own
    return found


def _registered(registry: Any, cfg: Dict[str, Any], path: str) -> Any:
    """The class that a section names; None unless it is of DI-engine or this project, since nothing is imported."""
    try:
        return registry.get(value_at(cfg, f'{path}.type'))
    except (KeyError, TypeError):
        return None
