"""The config of a run as others can repeat it: complete, however the run was started, and without paths of here."""
import os
import re
import shutil
from typing import Any, Dict, NamedTuple

from ding.utils import import_module
from easydict import EasyDict

from ding_common import ConfigError, check_links, code_of, describe, read_total_config
from ding_grpo.data.capability import is_grpo
from ding_grpo.report.config_diff import defaults_of

from .config_file import NAME, REWARDS, Saved, config_text, read_config

_ADDED = ('cfg_type', 'seed')  # by DI-engine, to the config that it compiles
_TEXTS = ('system_prompt', 'chat_options', 'template', 'chars', 'words', 'stop')  # keys whose texts are never paths
_ABSOLUTE = re.compile(r'(~|/[^/\n]+)/[^\n]*[^/\n]')


class Repeated(NamedTuple):
    """What repeats a run."""
    main: Dict[str, Any]  # its config, without paths
    policy: Dict[str, Any]  # the section ``policy`` with all defaults
    files: Dict[str, str]  # what the config reads, by the last part of its path
    seed: int
    command: str


def write_portable(folder: str, run: str, updates: int) -> Repeated:
    """Write ``config.py`` for so many updates of a run, and its ``rewards.py`` if it has one."""
    saved, total, portable = config_of(run), read_total_config(run), _Portable()
    main = portable({key: value for key, value in saved.main_config.items() if key != 'exp_name'})
    main['exp_name'] = os.path.basename(os.path.normpath(run))
    main['policy'].setdefault('run', {})['num_updates'] = updates or None
    mode = 'serial' if replays(total) else 'serial_onpolicy'
    with open(os.path.join(folder, NAME), 'w', encoding='utf-8') as f:
        f.write(config_text(Saved(main, portable(saved.create_config), saved.seed), NAME, mode))
    if os.path.exists(os.path.join(run, REWARDS)):
        check_links(os.path.join(run, REWARDS), 'run')
        shutil.copy(os.path.join(run, REWARDS), folder)
    return Repeated(main, total['policy'], portable.files, saved.seed, f'ding -m {mode} -c {NAME} -s {saved.seed}')


def replays(total: Dict[str, Any]) -> bool:
    """Whether a run, given its complete config, learns from a replay buffer."""
    buffer = total['policy']['other']['replay_buffer']
    return min(buffer['max_use'], buffer['max_staleness']) < float('inf')


def config_of(run: str) -> Saved:
    """The config that ``GRPO`` wrote into the folder of a run; of another run, what differs from the defaults."""
    if os.path.exists(os.path.join(run, NAME)):
        return read_config(run)
    cfg = read_total_config(run)
    main = _differing(cfg, defaults_of(cfg))
    for key in ('stop_value', 'n_episode'):  # which follow from ``env``
        main['policy'].get('eval', {}).get('evaluator', {}).pop(key, None)
    places = dict(
        env=cfg['env'],
        policy=cfg['policy'],
        env_manager=cfg['env']['manager'],
        collector=cfg['policy']['collect']['collector'],
    )
    create = {name: {key: of[key] for key in ('type', 'import_names') if key in of} for name, of in places.items()}
    for section in (main['env'], main['policy']):
        section.pop('type', None)
        section.pop('import_names', None)
    return Saved(EasyDict(main), EasyDict(create), cfg['seed'])


def open_run(run: str, trust: bool) -> Dict[str, Any]:
    """The complete config of a run of grpo, whose modules are imported. Raises ``ConfigError`` if the run is one of
    another policy, or if a config in its folder names code that is not trusted: the complete one, or the one that
    ``config_of`` prefers."""
    total = read_total_config(run)
    found = code_of(total)
    if os.path.exists(os.path.join(run, NAME)):
        saved = read_config(run)
        found += code_of(saved.main_config) + code_of(dict(create_config=saved.create_config))
    if found and not trust:
        raise ConfigError(
            f"RUN = {run!r}: its config would import or run {'; '.join(dict.fromkeys(found)):.600}. If you trust this "
            'code, add --trust.'
        )
    try:
        for section in (total['policy'], total['env']):
            import_module(section.get('import_names', []))
    except ImportError as error:
        raise ConfigError(f'RUN = {run!r}: a module of its config cannot be imported ({describe(error)}).') from error
    kind = total['policy'].get('type')
    if not is_grpo(kind):
        name = str(kind).removesuffix('_command')  # DI-engine's own ending
        raise ConfigError(f'RUN = {run!r}: is a run of policy.type = {name!r}, must be one of grpo.')
    return total


def _differing(value: Any, default: Any) -> Any:
    if not isinstance(value, dict):
        return value
    default = default if isinstance(default, dict) else {}
    return {
        key: _differing(x, default.get(key))
        for key, x in value.items() if key not in _ADDED and (key not in default or x != default[key])
    }


class _Portable:
    """Replaces each path in a config by its last part. ``files`` has the paths by these parts."""

    def __init__(self) -> None:
        self.files: Dict[str, str] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: x if key in _TEXTS else self(x) for key, x in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(map(self, value))
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        path, python, name = text.partition('.py:')
        path += python[:-1]
        own = os.path.basename(os.path.normpath(path))
        if not own or not os.path.exists(os.path.expanduser(path)) and _ABSOLUTE.fullmatch(path) is None:
            return text
        while self.files.setdefault(own, path) != path:  # another file of this name
            own = f'_{own}'
        return f'{own}:{name}' if python else own
