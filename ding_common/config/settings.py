"""Keys of a config that a command line sets: ``policy.learn.loss=dapo``."""
import ast
from itertools import product
from typing import Any, Iterable, Iterator, List, Tuple

from easydict import EasyDict

from ding_common.errors import ConfigError

from .check import require_dict

OF_MAIN, CREATE = ('policy', 'env', 'exp_name'), 'create_config'  # what keys begin with
_INFINITE = dict(inf=float('inf'))  # the only number that is no Python literal


def change(main_config: EasyDict, create_config: EasyDict, settings: Iterable[str]) -> None:
    """Set keys of both configs. A setting is ``KEY=VALUE``: a dotted path that begins with ``policy``, ``env``,
    ``exp_name`` or ``create_config``, and a Python literal, ``inf``, or a text. A pipeline checks it like a file's."""
    for setting in settings:
        set_key(main_config, create_config, *parsed(setting), setting)


def set_key(main_config: EasyDict, create_config: EasyDict, key: str, value: Any, where: str = '') -> None:
    """Set one key of both configs, by its dotted path. ``where`` begins messages."""
    where = where or f'{key}={value!r:.80}'
    root, *path = key.split('.')
    if root not in (*OF_MAIN, CREATE):
        meant = [f'{section}.{where}' for section in ('policy', 'env') if root in main_config[section]]
        hint = f' Did you mean {meant[0]}?' if meant else ''
        raise ConfigError(f'{where}: must begin with {", ".join(OF_MAIN)} or {CREATE}.{hint}')
    config, path = (create_config, path) if root == CREATE else (main_config, [root, *path])
    if not path or not all(path):
        raise ConfigError(f'{where}: a part of the key is missing.')
    for part in path[:-1]:
        config = config.setdefault(part, EasyDict())
        require_dict(config, f'{where}: {part}')
    config[path[-1]] = value


def parsed(setting: str) -> Tuple[str, Any]:
    """Key and value of ``KEY=VALUE``."""
    key, sign, text = setting.partition('=')
    if not sign:
        raise ConfigError(f'{setting}: must be KEY=VALUE, such as policy.learn.learning_rate=1e-3.')
    try:
        return key, _INFINITE[text] if text in _INFINITE else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return key, text


def sweep(settings: Iterable[str]) -> Iterator[Tuple[List[str], str]]:
    """All combinations of settings of which each may have several values, ``KEY=VALUE,VALUE``; and a name for each,
    with the last parts of the keys that have several."""
    values = {parsed(setting)[0]: _values(setting.partition('=')[2]) for setting in settings}
    last = {key: key.rpartition('.')[2] for key, of_key in values.items() if len(of_key) > 1}
    short = {key: name if list(last.values()).count(name) == 1 else key for key, name in last.items()}
    for chosen in product(*values.values()):
        pairs = list(zip(values, chosen))
        yield [f'{k}={v}' for k, v in pairs], ' '.join(f'{short[k]}={v}' for k, v in pairs if k in short)


def _values(text: str) -> List[str]:
    """What stands between commas that are outside of brackets and quotes."""
    values, depth, quote = [''], 0, ''
    for character in text:
        if quote:
            quote = '' if character == quote else quote
        elif character in '\'"':
            quote = character
        else:
            depth += (character in '([{') - (character in ')]}')
        if character == ',' and depth == 0 and not quote:
            values.append('')
        else:
            values[-1] += character
    return values
