"""What a user got from elsewhere: Python files are run, folders are held to keep to themselves."""
import os
import runpy
from typing import Any, Dict

from .errors import ConfigError, describe


def run_file(path: str, key: str) -> Dict[str, Any]:
    """
    Overview:
        Run a Python file.
    Arguments:
        - path (:obj:`str`): Its path.
        - key (:obj:`str`): Where a user wrote it, for messages.
    Returns:
        - names (:obj:`Dict[str, Any]`): What it defines.
    Raises:
        - ConfigError: If there is no such file, or it cannot be run.
    """
    check_is_file(path, key)
    try:
        return runpy.run_path(path)
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        raise ConfigError(f'{key} = {path!r}: {describe(error)}') from error


def check_is_file(path: str, key: str) -> None:
    """
    Overview:
        Hold a path to be that of a file.
    Raises:
        - ConfigError: If it is none; arguments as for ``run_file``.
    """
    if not os.path.isfile(path):
        raise ConfigError(f"{key} = {path!r}: {'is no file' if os.path.exists(path) else 'there is no such file'}.")


def check_links(path: str, key: str) -> None:
    """
    Overview:
        Refuse links that lead out of a folder: whoever made it does not choose what else is read of this machine. A \
        folder of the hub's cache may link to its repository's other folders, as they all do.
    Arguments:
        - path (:obj:`str`): A folder, or a file, which is then held to its folder.
        - key (:obj:`str`): Where a user wrote it, for the message.
    Raises:
        - ConfigError: On the first such link.
    """
    folder = path if os.path.isdir(path) else os.path.dirname(path) or '.'
    names = [os.path.join(where, name) for where, *below in os.walk(path) for names in below
             for name in names] if os.path.isdir(path) else [path]
    allowed = _repository(os.path.realpath(folder)) + os.sep
    for name in names:
        target = os.path.realpath(name)
        if os.path.islink(name) and not target.startswith(allowed):
            raise ConfigError(
                f'{key} = {path!r}: {name} is a link to {target}, outside the folder; put the file itself there, or '
                'name its own path.'
            )


def _repository(folder: str) -> str:
    """Of a snapshot in the hub's cache the repository, of any other folder itself."""
    repository, found, _ = folder.partition(f'{os.sep}snapshots{os.sep}')
    return repository if found and os.path.isdir(os.path.join(repository, 'blobs')) else folder
