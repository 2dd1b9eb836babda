import os
import traceback
from typing import NoReturn, Optional

import click

from .printable import printable


class _OneLine(click.ClickException):
    """Prints its message, which may quote a model or a data file, without unprintable characters."""

    def format_message(self) -> str:
        return printable(self.message)


class ConfigError(_OneLine, ValueError):
    """
    Overview:
        An invalid config. As a ``click.ClickException`` it makes ``ding`` print one line and exit with code 1. As a
        ``ValueError`` it is the type that a Python caller expects.
    """


class NumericError(_OneLine, ArithmeticError):
    """
    Overview:
        A NaN or Inf, with one fact per line about where the first one appeared. ``ding`` prints the message and exits \
        with code 1.
    """


class TaskError(_OneLine, RuntimeError):
    """
    Overview:
        A task that raised an error or returned an invalid value. DI-engine's env managers pass on only the text of an
        exception. ``str`` and ``repr`` therefore enclose the message in markers, by which ``unwrap_task_error`` finds
        it.
    """

    _opening, _closing = '[task error]', '[end of task error]'

    def __str__(self) -> str:
        return f'{self._opening}{self.message}{self._closing}'

    __repr__ = __str__

    @classmethod
    def find(cls, text: str) -> Optional[str]:
        """
        Overview:
            The message of the innermost task error in a text, or None. A worker process wraps an error a second time.
        """
        start, end = text.rfind(cls._opening), text.find(cls._closing)
        return text[start + len(cls._opening):end] if 0 <= start < end else None


def describe(error: BaseException) -> str:
    """Describe an exception of user code in one line: type, message and location."""
    if isinstance(error, SyntaxError):  # its message already names the location
        return f'{type(error).__name__}: {error}'
    said = f"{type(error).__name__}: {' '.join(str(error).split()):.200}"
    frames = traceback.extract_tb(error.__traceback__)  # none if it was returned and never raised
    return f'{said} ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})' if frames else said


def unwrap_task_error(error: RuntimeError) -> NoReturn:
    """
    Overview:
        Raise the ``TaskError`` that an env manager turned into a ``RuntimeError``, or ``error`` itself if it contains \
        none.
    Arguments:
        - error (:obj:`RuntimeError`): The error that the env manager raised.
    Raises:
        - TaskError: If the text of ``error`` contains one.
    """
    message = TaskError.find(str(error))
    if message is None:
        raise error
    raise TaskError(message) from None


class CheckpointError(_OneLine, RuntimeError):
    """A checkpoint that cannot be written or read."""


class PeerError(_OneLine, RuntimeError):
    """
    Overview:
        A process of a distributed run cannot continue because another process has exited, does not respond, or \
        performs different operations.
    """
