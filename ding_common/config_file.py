"""Config files of DI-engine, held to what every pipeline reads of them before it checks anything."""
import os
from typing import Any, Dict, Tuple

from easydict import EasyDict

from .check import require_dict
from .errors import ConfigError
from .files import run_file

SECTIONS = dict(main_config=('env', 'policy'), create_config=('env_manager', 'policy'))


def read_config_file(path: str) -> Tuple[EasyDict, EasyDict]:
    """
    Overview:
        What ``ding.config.read_config`` gives, or one sentence.
    Arguments:
        - path (:obj:`str`): A Python file that defines ``main_config`` and ``create_config``.
    Raises:
        - ConfigError: If it is none.
    """
    where = f'--config = {path!r}'
    if not path.endswith('.py'):
        raise ConfigError(f'{where}: must be a Python file, named NAME.py.')
    names = run_file(os.path.expanduser(path), '--config')
    for name in SECTIONS:
        if name not in names:
            raise ConfigError(f'{where}: must define {name}.')
    check_configs(names['main_config'], names['create_config'])
    return names['main_config'], names['create_config']


def check_configs(main_config: Any, create_config: Any) -> None:
    """
    Overview:
        Hold both to the sections that DI-engine's pipelines take for granted.
    Raises:
        - ConfigError: On the first that is missing or of a wrong type.
    """
    for (name, sections), config in zip(SECTIONS.items(), (main_config, create_config)):
        if not isinstance(config, EasyDict):
            raise ConfigError(f'{name} = {config!r:.200}: must be an EasyDict, as of {name} = EasyDict(dict(...)).')
        for section in sections:
            require_section(config, section, name)
    for section in SECTIONS['create_config']:
        kind = create_config[section].get('type')
        if not isinstance(kind, str):
            raise ConfigError(f'create_config.{section}.type = {kind!r}: must be the name of what is registered.')


def require_section(config: Dict, section: str, name: str) -> None:
    """
    Overview:
        Refuse a config without a section.
    Arguments:
        - config (:obj:`Dict`): ``main_config`` or ``create_config``.
        - section (:obj:`str`): Which must be there.
        - name (:obj:`str`): The config's, for the message.
    Raises:
        - ConfigError: If it is missing, or no dict.
    """
    if section not in config:
        there = f' There are {", ".join(config)}.' if config else ''
        raise ConfigError(f'{name}.{section}: missing; must be a dict.{there}')
    require_dict(config[section], f'{name}.{section}')
