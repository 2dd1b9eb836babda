"""Run Python files and import names of the user, and reject folders that lead outside."""
import errno
import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Any, Dict

from .config.check import Rule, check_not_async, nearest
from .errors import ConfigError, config_errors, describe


def run_file(path: str, key: str) -> Dict[str, Any]:
    """The names of a Python file, which runs as a module, so that its classes and functions can be pickled."""
    check_is_file(path, key)
    module = ModuleType(f'<{os.path.realpath(path)}>'.replace('.', '_'))  # pickle would import what is before a dot
    module.__file__ = path
    sys.modules[module.__name__] = module
    try:
        with open(path, 'rb') as f:
            exec(compile(f.read(), path, 'exec', dont_inherit=True), vars(module))
        return dict(vars(module))
    except ConfigError:  # it names the key that is wrong
        raise
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        raise ConfigError(f'{key} = {path!r}: {describe(error)}') from error


def import_name(name: str, key: str, coroutine: bool = False) -> Any:
    """A function or class of a user's module, ``'module:name'``. ``coroutine``: whether it may be ``async def``."""
    module_name, _, attribute = name.partition(':')
    if not Rule.modules().holds([module_name]):
        raise ConfigError(f'{key} = {name!r}: there is no module {module_name!r} that can be imported.')
    with config_errors(f'{key} = {name!r}: the module cannot be imported'):
        module = import_module(module_name)
    if not hasattr(module, attribute):
        functions = [each for each, value in vars(module).items() if callable(value)]
        raise ConfigError(f'{key} = {name!r}: the module has no {attribute!r}; {nearest(attribute, functions)}')
    if not coroutine:
        check_not_async(getattr(module, attribute), f'{key} = {name!r}')
    return getattr(module, attribute)


def import_modules(section: Dict[str, Any], key: str) -> None:
    """Import the modules that ``import_names`` of a section lists; ``key`` is the section's dotted path."""
    modules, rule = section.get('import_names', []), Rule.modules()
    message = f'{key}.import_names = {modules!r}: must be {rule.allowed}'
    if not isinstance(modules, (list, tuple)):
        raise ConfigError(f'{message}.')
    try:
        for name in modules:
            import_module(name)
    except ImportError as error:  # perhaps of a package that the module needs
        raise ConfigError(f'{message} ({describe(error)}).') from error
    except Exception as error:
        if rule.holds(modules):  # of the user's code
            raise
        raise ConfigError(f'{message}.') from error


def check_is_file(path: str, key: str) -> None:
    if not os.path.isfile(path):
        raise ConfigError(f"{key} = {path!r}: {'is not a file' if os.path.exists(path) else 'there is no such file'}.")


def check_writable(folder: str, error: OSError) -> None:
    """Raise a ``ConfigError`` if the folder of a run, one above it or a file in it could not be written."""
    path, own = os.path.realpath(str(error.filename)), os.path.realpath(folder)
    within = path.startswith(own) or own.startswith(path + os.sep)
    if within and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG):
        raise ConfigError(
            f'exp_name = {folder!r}: {error.filename} could not be written ({error.strerror}). Use another exp_name, '
            'or run in a folder that can be written.'
        ) from error


def check_links(path: str, key: str, to_folders: bool = False, besides: str = '') -> None:
    """Reject symbolic links that lead out of a folder, or out of that of a file, so that its author cannot make this
    machine read other files, and what is neither file nor folder, such as a pipe, which nobody may ever write. A folder
    in the hub's cache may link to others of its repository. With ``to_folders`` links may lead to folders outside, such
    as those of a larger disk. The folder ``besides`` in it is not looked at."""
    folder = path if os.path.isdir(path) else os.path.dirname(path) or '.'
    names = [os.path.join(where, name) for where, *below in os.walk(path) for names in below
             for name in names] if os.path.isdir(path) else [path]
    allowed = _repository(os.path.realpath(folder)) + os.sep
    for name in names:
        target = os.path.realpath(name)
        if besides and name.startswith(os.path.join(path, besides, '')):
            continue
        if os.path.islink(name) and not target.startswith(allowed) and not (to_folders and os.path.isdir(target)):
            raise ConfigError(
                f'{key} = {path!r}: {name} is a link to {target}, outside the folder. Copy the file into the folder, '
                'or use the path of the file itself.'
            )
        if os.path.exists(target) and not os.path.isfile(target) and not os.path.isdir(target):
            raise ConfigError(f'{key} = {path!r}: {name} is neither a file nor a folder.')


def _repository(folder: str) -> str:
    """The repository folder of a snapshot in the hub's cache; any other folder is returned unchanged."""
    repository, found, _ = folder.partition(f'{os.sep}snapshots{os.sep}')
    return repository if found and os.path.isdir(os.path.join(repository, 'blobs')) else folder
