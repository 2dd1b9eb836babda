"""Check the names in ``create_config`` before DI-engine looks them up and fails with a ``KeyError``."""
import difflib

from ding.utils import (
    BUFFER_REGISTRY, ENV_MANAGER_REGISTRY, ENV_REGISTRY, LEARNER_REGISTRY, POLICY_REGISTRY, SERIAL_COLLECTOR_REGISTRY,
    SERIAL_EVALUATOR_REGISTRY
)
from easydict import EasyDict

from ding_common.errors import ConfigError
from ding_common.files import import_modules

from .check import Rule, require_dict

REGISTRIES = dict(
    env=ENV_REGISTRY,
    env_manager=ENV_MANAGER_REGISTRY,
    policy=POLICY_REGISTRY,
    collector=SERIAL_COLLECTOR_REGISTRY,
    evaluator=SERIAL_EVALUATOR_REGISTRY,
    replay_buffer=BUFFER_REGISTRY,
    learner=LEARNER_REGISTRY,
)


def check_names(create_config: EasyDict) -> None:
    """Import the modules that ``create_config`` lists, then check that its types are registered."""
    sections = {name: create_config[name] for name in REGISTRIES if name in create_config}
    for name, section in sections.items():
        require_dict(section, f'create_config.{name}')
        import_modules(section, f'create_config.{name}')
    for name, section in sections.items():
        kind, known = section.get('type'), REGISTRIES[name]
        if kind is not None and not Rule.registered(known).holds(kind):
            near = ' or '.join(map(repr, difflib.get_close_matches(str(kind), known)))
            raise ConfigError(
                f'create_config.{name}.type = {kind!r}: must be a registered name'
                f'{f"; did you mean {near}?" if near else "; check that import_names lists its module."}'
            )
