"""Env managers for DI-engine's serial pipelines."""
import logging
import signal
from functools import wraps
from multiprocessing import connection
from typing import Any, Callable, Dict, List, Tuple

import click
from ding.envs import AsyncSubprocessEnvManager, BaseEnvManager, create_env_manager

from .errors import ConfigError, PeerError, describe, is_not_installed

# Of DI-engine's task pipeline, and those that make other environments than the config's.
OTHERS = ('base_v2', 'subprocess_v2', 'gym_vector', 'env_pool')
SPACES = ('observation_space', 'action_space', 'reward_space')

LOG = logging.getLogger('env_manager')  # takes the place of DI-engine's ``logging`` in its env managers


def _is_shown(record: logging.LogRecord) -> bool:
    """Whether a message is not about an error of an environment, which the exception that follows contains."""
    text = record.getMessage()
    return 'exceeded max retries' not in text and not text.startswith('subprocess exception traceback')


LOG.addFilter(_is_shown)


def while_alive(method: Callable) -> Callable:
    """
    Overview:
        ``step`` or ``reset`` of a manager, which raises a ``PeerError`` if an environment process has ended.
    Arguments:
        - method (:obj:`Callable`): DI-engine's method.
    """
    if hasattr(method, '__wrapped__'):
        return method

    @wraps(method)
    def step_or_reset(self: AsyncSubprocessEnvManager, *args, **kwargs) -> Any:
        logs: List[logging.LogRecord] = []  # DI-engine logs tracebacks before it raises
        LOG.addFilter(logs.append)  # which returns None, so that the record is not logged
        try:
            return method(self, *args, **kwargs)
        except (EOFError, OSError, RuntimeError) as error:
            told, logs[:] = logs[:], ()
            if not isinstance(error, RuntimeError):  # of a pipe, which ends a moment before its process
                connection.wait([process.sentinel for process in self._subprocesses.values()], 5)
            _check_alive(self, expected=(0, -signal.SIGTERM))  # how the manager ends the others
            logs[:] = told
            raise
        finally:
            LOG.removeFilter(logs.append)
            for record in logs:
                LOG.handle(record)

    return step_or_reset


def _check_alive(manager: AsyncSubprocessEnvManager, expected: Tuple[int, ...] = ()) -> None:
    """Raise an error if an environment process has ended."""
    for i, process in manager._subprocesses.items():
        if process.exitcode is not None and process.exitcode not in expected:
            raise PeerError(
                f'the process {process.pid} of environment {i} has ended with exit code {process.exitcode}; -9 is a '
                'kill, mostly for lack of memory'
            )


def closing_all(close: Callable) -> Callable:
    """
    Overview:
        ``close`` of a manager, which also ends the other processes if one of them has already exited.
    Arguments:
        - close (:obj:`Callable`): DI-engine's method.
    """
    if hasattr(close, '__wrapped__'):
        return close

    @wraps(close)
    def close_all(self: AsyncSubprocessEnvManager) -> None:
        try:
            close(self)
        except (OSError, EOFError):
            for process in self._subprocesses.values():
                process.terminate()

    return close_all


def create_manager(cfg: Dict, env_fn: List[Callable]) -> BaseEnvManager:
    """
    Overview:
        As DI-engine's ``create_env_manager``, which fails with a traceback where this raises.
    Arguments:
        - cfg (:obj:`Dict`): The section ``env.manager``, compiled.
        - env_fn (:obj:`List[Callable]`): Makes the environments.
    Raises:
        - ConfigError: If the manager does not work in a serial pipeline, or the environment cannot be created, or \
            lacks a space that DI-engine reads.
    """
    if cfg.type in OTHERS:
        raise ConfigError(
            f'create_config.env_manager.type = {cfg.type!r}: does not work in the modes serial, serial_onpolicy and '
            "eval. Use 'base' or 'subprocess'."
        )
    try:
        return create_env_manager(cfg, env_fn)
    except click.ClickException:
        raise
    except Exception as error:  # an environment may raise anything
        make = getattr(env_fn[0], 'func', env_fn[0])
        name, lacking = getattr(make, '__name__', type(make).__name__), str(getattr(error, 'name', '')).lstrip('_')
        if isinstance(error, AttributeError) and lacking in SPACES:
            raise ConfigError(
                f'create_config.env: the environment {name} has no {lacking}. It must have {", ".join(SPACES)}, at the '
                'latest after its first reset.'
            ) from error
        hint = '. Install its package' if is_not_installed(error) else ''
        raise ConfigError(f'create_config.env: {name} cannot be created ({describe(error)}){hint}') from error
