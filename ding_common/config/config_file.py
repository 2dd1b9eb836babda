"""Load DI-engine config files, and check the sections that every pipeline reads."""
import copy
import os
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Dict, Iterator, Optional, Sequence, Tuple

import click
from easydict import EasyDict

from ding_common.errors import ConfigError
from ding_common.files import run_file

from .check import nearest, require_dict
from .settings import change

ENDING = '_config.py'
SECTIONS = dict(main_config=('env', 'policy'), create_config=('policy', ))
_AS_WRITTEN = ContextVar('as_written', default=False)


class ConfigFile(click.ParamType):
    """A command-line argument for a config: a path, or the name of a shipped config. It is converted to a path."""
    name = 'config'

    def convert(self, value: str, param: Optional[click.Parameter], ctx: Optional[click.Context]) -> str:
        path = find_config(value)
        if path != value:
            click.echo(f'config: {path}', err=True)
        return path


def find_config(name: str) -> str:
    """The user's own file, else the shipped config with this name; ``.py`` or ``_config.py`` may be left out."""
    for path in (name, f'{name}.py', f'{name}{ENDING}'):
        if os.path.isfile(os.path.expanduser(path)):
            return path
    shipped, key = shipped_configs(), name.removesuffix('.py').removesuffix('_config')
    if key in shipped:
        return shipped[key]
    if os.path.exists(os.path.expanduser(name)):
        return name  # not a file: reading it fails with a message
    raise ConfigError(
        f'--config = {name!r}: there is no such file, and no shipped config with this name; '
        f'{nearest(os.path.basename(key), shipped)}'
    )


def shipped_configs() -> Dict[str, str]:
    """Their paths by name. A wheel contains them in ``ding_common`` (see setup.py), a clone in ``config/``."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    inside, beside = os.path.join(package, 'configs'), os.path.join(os.path.dirname(package), 'config')
    folder = inside if os.path.isdir(inside) else beside
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return {name.removesuffix(ENDING): os.path.join(folder, name) for name in names if name.endswith(ENDING)}


def shipped_config(name: str,
                   exp_name: Optional[str] = None,
                   env_of: Optional[str] = None) -> Tuple[EasyDict, EasyDict]:
    """A copy of a shipped config, such as ``think_answer_grpo``, to start another one from: ``main_config`` and
    ``create_config``. It has only the keys that its file writes, so that what follows from other keys, such as
    ``collector_env_num``, is derived after your changes. ``exp_name`` replaces its output folder. ``env_of`` names a
    shipped config whose keys of ``env`` and ``policy.model`` replace those of the copy; keys that only the copy has
    stay. Raises a ``ConfigError`` if there is no such config."""
    main_config, create_config = _read_shipped(name)
    if env_of is not None:
        other, _ = _read_shipped(env_of)
        main_config.env.update(other.env)
        main_config.policy.model.update(other.policy.model)
    if exp_name is not None:
        main_config.exp_name = exp_name
    return main_config, create_config


def _read_shipped(name: str) -> Tuple[EasyDict, EasyDict]:
    shipped = shipped_configs()
    if name not in shipped:
        raise ConfigError(f'shipped_config({name!r}): there is no such config; {nearest(str(name), shipped)}')
    with _as_written():
        return read_config_file(shipped[name])


@contextmanager
def _as_written() -> Iterator[None]:
    before = _AS_WRITTEN.set(True)
    try:
        yield
    finally:
        _AS_WRITTEN.reset(before)


def is_read_as_written() -> bool:
    """Whether a file is being read whose keys will change, so that nothing is to be derived in it."""
    return _AS_WRITTEN.get()


def read_config_file(path: str, settings: Sequence[str] = ()) -> Tuple[EasyDict, EasyDict]:
    """``main_config`` and ``create_config`` of a Python file, with a message of one line if it has none. Settings such
    as ``'policy.group_size=16'`` change keys, before what follows from them is derived."""
    where = f'--config = {path!r}'
    if not path.endswith('.py'):
        raise ConfigError(f'{where}: must be a Python file, named NAME.py.')
    with _as_written() if settings else nullcontext():
        names = run_file(os.path.expanduser(path), '--config')
    for name in SECTIONS:
        if name not in names:
            raise ConfigError(f'{where}: must define {name}.')
    check_configs(names['main_config'], names['create_config'])
    change(names['main_config'], names['create_config'], settings)
    return names['main_config'], names['create_config']


def read_main_config(path: str, exp_name: Optional[str]) -> Dict:
    """A copy of the ``main_config`` of a Python file. ``exp_name`` replaces its output folder unless it is None."""
    main_config = run_file(path, '--config').get('main_config')
    if not isinstance(main_config, dict):
        raise ConfigError(f'--config = {path!r}: must define a dict main_config.')
    main_config = copy.deepcopy(main_config)
    if exp_name is not None:
        main_config['exp_name'] = exp_name
    return main_config


def check_configs(main_config: Any, create_config: Any) -> None:
    """Raise a ``ConfigError`` if a section that DI-engine's pipelines assume is missing or of another type."""
    for (name, sections), config in zip(SECTIONS.items(), (main_config, create_config)):
        if not isinstance(config, EasyDict):
            raise ConfigError(f'{name} = {config!r:.200}: must be an EasyDict: {name} = EasyDict(dict(...)).')
        for section in sections:
            require_section(config, section, name)
    for section in SECTIONS['create_config']:
        kind = create_config[section].get('type')
        if not isinstance(kind, str):
            raise ConfigError(f'create_config.{section}.type = {kind!r}: must be a registered name.')


def require_section(config: Dict, section: str, name: str) -> None:
    """Raise a ``ConfigError`` if the config called ``name`` lacks a section, or the section is not a dict."""
    if section not in config:
        there = f' Present: {", ".join(config)}.' if config else ''
        raise ConfigError(f'{name}.{section}: missing; must be a dict.{there}')
    require_dict(config[section], f'{name}.{section}')
