"""The complete config that DI-engine writes into the folder of a run, read as data: no code in it is run."""
import ast
import os
import re
import sys
from typing import Any, Dict, Iterator, List, Tuple

from ding_common.errors import ConfigError, describe
from ding_common.files import check_is_file

NAME = 'total_config.py'
_NUMBERS = dict(inf=float('inf'), nan=float('nan'))
# What DI-engine adds to a config while it compiles it.
_ADDED = ('cfg_type', 'import_names')
_INSTALLED = {'ding', 'ding_grpo', 'dizoo_llm'}
# Keys whose texts are imported or run, and texts that are, whatever their key: 'module:name', and Python files. Columns
# and templates of prompts are data.
_RUN = {'import_names', 'file', 'answers', 'face', 'functions', 'demonstration', 'allowed_tokens'}
_DATA = {'template', 'system_prompt', 'prompt', 'answer'}
_CODE = re.compile(r'[A-Za-z_][\w.]*:[A-Za-z_]\w*|.+\.py(:\w+)?')


def as_literals(value: Any) -> Any:
    """A config in which all is data: functions and classes are ``'module:name'``, or ``'file.py:name'`` of the script
    that runs, and other objects are texts."""
    if isinstance(value, dict):
        return {as_literals(key): as_literals(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return (list if isinstance(value, list) else tuple)(map(as_literals, value))
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if callable(value) and hasattr(value, '__qualname__'):
        script = getattr(sys.modules.get('__main__'), '__file__', None)
        return f"{script if script and value.__module__ == '__main__' else value.__module__}:{value.__qualname__}"
    return repr(value)


def read_total_config(folder: str) -> Dict[str, Any]:
    """The config of the run in a folder. Raises ``ConfigError`` if it is missing or holds more than plain values."""
    path = os.path.join(folder, NAME)
    if os.path.exists(path):
        check_is_file(path, 'RUN')
    try:
        with open(path, encoding='utf-8') as f:
            tree = ast.parse(f.read())
        value = next(
            n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == 'exp_config'
        )
        config = ast.literal_eval(_Numbers().visit(value))
        repr(config)  # raises for integers of thousands of digits
        if not all(isinstance(section, dict) for section in (config, config['env'], config['policy'])):
            raise ValueError('env or policy is not a dict')
        return config
    except OSError as error:
        raise ConfigError(f'{path}: {error.strerror}. Every run writes this file into its folder.') from error
    except Exception as error:  # also MemoryError and RecursionError of deep nesting
        raise ConfigError(
            f'{path}: contains more than plain values ({describe(error):.200}), so it cannot be read.'
        ) from error


def code_of(config: Dict[str, Any]) -> List[str]:
    """Modules, functions and Python files, with their keys, that a run of a config imports besides this project."""
    return list(dict.fromkeys(_code(config, '', '')))


def leaves(config: Dict[str, Any], path: str = '') -> Iterator[Tuple[str, Any]]:
    """Each key of a config, with the names of its sections and dots between, and its value."""
    for key, value in config.items():
        if key in _ADDED:
            continue
        if isinstance(value, dict) and value:
            yield from leaves(value, f'{path}{key}.')
        else:
            yield f'{path}{key}', value


def _code(value: Any, path: str, key: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, x in value.items():
            yield from _code(x, f'{path}.{name}' if path else str(name), str(name))
    elif isinstance(value, (list, tuple)):
        for x in value:
            yield from _code(x, path, key)
    elif isinstance(value, str) and value:
        own = key == 'import_names' and value.split('.')[0] in _INSTALLED
        if not own and key not in _DATA and (key in _RUN or _CODE.fullmatch(value)):
            yield f'{path} = {value!r:.100}'


class _Numbers(ast.NodeTransformer):
    """Replaces the names of numbers that have no literal."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(_NUMBERS[node.id]) if node.id in _NUMBERS else node
