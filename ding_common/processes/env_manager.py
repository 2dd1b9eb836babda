"""Env managers for DI-engine's serial pipelines."""
import logging
import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from multiprocessing import connection
from typing import Any, Callable, Dict, List, Optional

import click
from ding.envs import AsyncSubprocessEnvManager, BaseEnvManager, SyncSubprocessEnvManager, create_env_manager
from ding.envs.env_manager import base_env_manager, subprocess_env_manager
from ding.utils import import_module

from ding_common.errors import ConfigError, PeerError, describe, is_not_installed

# Of DI-engine's task pipeline, and those that make other environments than the config's.
OTHERS = ('base_v2', 'subprocess_v2', 'gym_vector', 'env_pool')
SPACES = ('observation_space', 'action_space', 'reward_space')

# Takes the place of ``logging`` in DI-engine's env managers, from the first manager of this package on. They print an
# error that hides the environment's own message, and tracebacks of environment processes, also from threads that
# outlive a run. The exception that they raise contains both.
LOG = logging.getLogger('env_manager')


def _is_shown(record: logging.LogRecord) -> bool:
    """Whether a message is not about an error of an environment, which the exception that follows contains."""
    text = record.getMessage()
    return 'exceeded max retries' not in text and not text.startswith('subprocess exception traceback')


LOG.addFilter(_is_shown)


class _Guarded:
    """Managers of environments in processes. Ctrl-C in a terminal and torchrun's SIGTERM go to the whole process group,
    and would kill these processes before the learner has saved. One that has been killed would end in tracebacks of its
    pipe, of a reset that is tried again, and of closing the others; here it is a ``PeerError``."""

    def step(self, *args, **kwargs) -> Any:
        return self._while_alive(super().step, *args, **kwargs)

    def reset(self, *args, **kwargs) -> Any:
        return self._while_alive(super().reset, *args, **kwargs)

    def close(self) -> None:
        try:
            super().close()
        except (OSError, EOFError):
            for process in self._subprocesses.values():
                process.terminate()

    @staticmethod
    def worker_fn_robust(*args, **kwargs) -> None:
        stand_alone()
        with suppress(ConnectionError):  # the parent has ended
            AsyncSubprocessEnvManager.worker_fn_robust(*args, **kwargs)

    def _while_alive(self, method: Callable, *args, **kwargs) -> Any:
        logs: List[logging.LogRecord] = []  # DI-engine logs tracebacks before it raises
        LOG.addFilter(logs.append)  # which returns None, so that the record is not logged
        try:
            return method(*args, **kwargs)
        except (EOFError, OSError, RuntimeError) as error:
            told, logs[:] = logs[:], ()
            if not isinstance(error, RuntimeError):  # of a pipe, which ends a moment before its process
                connection.wait([process.sentinel for process in self._subprocesses.values()], 5)
            for i, process in self._subprocesses.items():
                if process.exitcode not in (None, 0, -signal.SIGTERM):  # the latter: how the manager ends the others
                    raise PeerError(
                        f'the process {process.pid} of environment {i} has ended with exit code {process.exitcode}; '
                        '-9 is a kill, mostly for lack of memory'
                    )
            logs[:] = told
            raise
        finally:
            LOG.removeFilter(logs.append)
            for record in logs:
                LOG.handle(record)


class AsyncManager(_Guarded, AsyncSubprocessEnvManager):
    pass


class SyncManager(_Guarded, SyncSubprocessEnvManager):
    pass


class TogetherManager(BaseEnvManager):
    """Environments with ``together`` begin their resets and steps before the first one waits for something outside,
    such as an agent, so that they wait at the same time."""

    def reset(self, reset_param: Optional[Dict] = None) -> None:
        if getattr(self.env_ref, 'together', False):
            for i, arguments in (self._reset_param if reset_param is None else reset_param).items():
                self._envs[i].begin_reset(**(arguments or {}))
        super().reset(reset_param)

    def step(self, actions: Dict) -> Dict:
        if getattr(self.env_ref, 'together', False):
            for i, action in actions.items():
                self._envs[i].begin_step(action)
        return super().step(actions)


OF_PROCESSES = dict(async_subprocess=AsyncManager, subprocess=SyncManager)


def stand_alone() -> None:
    """Make this process, of environments, end with its parent, and not by signals to the parent's group."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the manager terminates the process with it
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Exit with the parent. A kill of its group misses this process; a hanging step does not see the closed pipe."""
    connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def create_manager(cfg: Dict, env_fn: List[Callable]) -> BaseEnvManager:
    """As DI-engine's ``create_env_manager``, with a message of one line where that fails."""
    if cfg.type in OTHERS:
        raise ConfigError(
            f'create_config.env_manager.type = {cfg.type!r}: does not work in the modes serial, serial_onpolicy and '
            "eval. Use 'base' or 'subprocess', or 'vector' for gymnasium's vector environments."
        )
    for module in (base_env_manager, subprocess_env_manager):
        module.logging = LOG
    try:
        import_module(cfg.get('import_names', []))
        make = dict(OF_PROCESSES, base=TogetherManager).get(cfg.type)
        return create_env_manager(cfg, env_fn) if make is None else make(env_fn=env_fn, cfg=cfg)
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
