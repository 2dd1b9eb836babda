import os
import re
import sysconfig
import traceback
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Callable, Iterator, List, NoReturn, Optional, Tuple

import click

from .output.printable import printable

_HERE = os.path.dirname(os.path.abspath(__file__))
_LIBRARIES = (
    *(sysconfig.get_path(name) + os.sep for name in ('stdlib', 'purelib', 'platlib')),
    *(os.path.join(os.path.dirname(_HERE), name, '') for name in ('ding_common', 'ding_grpo', 'dizoo_llm')),
)


class _OneLine(click.ClickException):
    """Prints its message, which may quote a model or a data file, without unprintable characters."""

    def format_message(self) -> str:
        return printable(self.message)


class ConfigError(_OneLine, ValueError):
    """An invalid config: a ``click.ClickException``, for which ``ding`` prints one line and exits with code 1, and a
    ``ValueError``, which a Python caller expects."""


class NumericError(_OneLine, ArithmeticError):
    """A NaN or Inf, with one fact per line about where the first one appeared."""


class TaskError(_OneLine, RuntimeError):
    """A task that raised an error or returned an invalid value. DI-engine's env managers pass on only the text of an
    exception: until ``marked`` is False, it encloses the message in markers, which ``unwrap_task_error`` finds."""

    _opening, _closing = '[task error]', '[end of task error]'
    marked = True

    def __str__(self) -> str:
        return f'{self._opening}{self.message}{self._closing}' if self.marked else self.message

    __repr__ = __str__

    @classmethod
    def find(cls, text: str) -> Optional[str]:
        """The message of the innermost task error in a text, or None. A worker process wraps an error a second time."""
        start, end = text.rfind(cls._opening), text.find(cls._closing)
        return text[start + len(cls._opening):end] if 0 <= start < end else None


def describe(error: BaseException) -> str:
    """Describe an exception of user code in one line: type, message and location."""
    if isinstance(error, SyntaxError):  # its message already names the location
        return f'{type(error).__name__}: {error}'
    text = error.message if isinstance(error, TaskError) else str(error)
    said = f"{type(error).__name__}: {' '.join(text.split()):.200}"
    frames = traceback.extract_tb(error.__traceback__)  # none if it was returned and never raised
    return f'{said} ({_place([frame[:3] for frame in frames])[0]})' if frames else said


def _place(frames: List[Tuple]) -> Tuple[str, str]:
    """File and line, and function, of the last frame outside of libraries and this project, or the last one of all."""
    path, line, function = ([frame for frame in frames if not frame[0].startswith(_LIBRARIES)] or frames)[-1]
    return f'{os.path.basename(path)}:{line}', function


@contextmanager
def config_errors(told: str, then: str = '', reason: Callable[[BaseException], str] = describe) -> Iterator[None]:
    """Context of what may raise any error, as code or files of a user: the error becomes a ``ConfigError`` of ``told``,
    its ``reason`` in parentheses, and ``then``. Errors that are one line already stay."""
    try:
        yield
    except click.ClickException:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f'{told} ({reason(error)}){then}') from error


def is_not_installed(error: Optional[BaseException]) -> bool:
    """Whether an exception, or its cause, says that a package, and not only a module of it, is not installed."""
    if error is None:
        return False
    if isinstance(error, ImportError):  # raised by hand, as by gym, it has no name
        return error.name is None or find_spec(error.name.partition('.')[0]) is None
    # gym and gymnasium have classes of this name each
    return type(error).__name__ == 'DependencyNotInstalled' or is_not_installed(error.__cause__)


# How DI-engine's env managers pass on what an environment raised: from another process, and from their own.
_PROCESS = re.compile(r'Env Process Exception:\n(.*File "[^"]*", line \d+, in \w+\n)(?: [^\n]*\n)*(.*)', re.S)
_FRAME = re.compile(r'File "([^"]*)", line (\d+), in (\w+)')
_RETRIED = re.compile(r'Env \d+ (step|reset) has exceeded max retries\(\d+\), and the latest exception is: (.*)', re.S)


def unwrap_task_error(error: Exception, what: str = '') -> NoReturn:
    """Raise what an environment raised as a ``TaskError`` in one line, or ``error`` if it comes from elsewhere, unless
    it was called without an env manager, for ``what``: step or reset."""
    passed_on = error
    if isinstance(error.__cause__, Exception) and str(error).startswith('Exception in thread('):  # of a reset
        passed_on = error.__cause__
    text = str(passed_on.args[0]) if passed_on.args else ''
    message = TaskError.find(text) or _of_environment(passed_on, text, what)
    if message is None:
        raise error
    found = TaskError(message)
    found.marked = False
    raise found from (error if TaskError.find(text) is None else None)


def _of_environment(error: Exception, text: str, what: str) -> Optional[str]:
    """What an environment raised, in one line; None if a text is not of an env manager, and there is no ``what``."""
    process, retried = _PROCESS.search(text.replace('\\n', '\n')), _RETRIED.fullmatch(text)
    if process is not None:
        told, said = process.groups()
        place, what = _place(_FRAME.findall(told))
    elif retried is not None or what:
        what, said = (what, str(error)) if retried is None else retried.groups()
        place, _ = _place([frame[:3] for frame in traceback.extract_tb(error.__traceback__)])
    else:
        return None
    said = ' '.join(said.split()) or 'an exception without a message'
    return f'an environment failed in {what}: {said:.300} ({place})'


@contextmanager
def environment_errors(what: str = '') -> Iterator[None]:
    """Context of calls of tasks and environments: what they raise becomes a ``TaskError`` in one line, without marks.
    ``what``: step or reset, where an environment is called without an env manager."""
    try:
        yield
    except TaskError as error:
        error.marked = False
        raise
    except click.ClickException:
        raise
    except Exception as error:  # an environment may raise anything
        unwrap_task_error(error, what)


class CheckpointError(_OneLine, RuntimeError):
    """A checkpoint that cannot be written or read."""


class PeerError(_OneLine, RuntimeError):
    """A process cannot continue because another one has exited, does not respond, or performs different operations."""


@contextmanager
def errors_exit_with(code: int) -> Iterator[None]:
    """Errors end a command with this exit code, as code 1 has another meaning there."""
    try:
        yield
    except click.ClickException as error:
        error.exit_code = code
        raise
