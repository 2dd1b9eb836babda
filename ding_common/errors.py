import os
import traceback
from typing import NoReturn, Optional

import click


class ConfigError(click.ClickException, ValueError):
    """
    Overview:
        A config that cannot be run. As a ``click.ClickException`` it makes ``ding`` print one line and exit with 1;
        as a ``ValueError`` it is what a Python caller expects.
    """


class NumericError(click.ClickException, ArithmeticError):
    """
    Overview:
        Numbers that are not finite, and where the first of them stands, a fact a line. ``ding`` prints it and exits \
        with 1.
    """


class TaskError(click.ClickException, RuntimeError):
    """
    Overview:
        A task that raised, or gave something else than it promises.
        DI-engine's env managers hand on the text of an exception, not the exception: ``str`` and ``repr`` therefore
        enclose the message in marks by which ``unwrap_task_error`` finds it again.
    """

    _opening, _closing = '[task error]', '[end of task error]'

    def __str__(self) -> str:
        return f'{self._opening}{self.message}{self._closing}'

    __repr__ = __str__

    @classmethod
    def find(cls, text: str) -> Optional[str]:
        """
        Overview:
            The message of the innermost task error in a text: a worker process wraps an error once more.
        """
        start, end = text.rfind(cls._opening), text.find(cls._closing)
        return text[start + len(cls._opening):end] if 0 <= start < end else None


def describe(error: BaseException) -> str:
    """
    Overview:
        An exception of somebody else's code in one line: its type, what it says, and where.
    """
    if isinstance(error, SyntaxError):  # it names its own place, and was raised by who read the file
        return f'{type(error).__name__}: {error}'
    frame = traceback.extract_tb(error.__traceback__)[-1]
    said = ' '.join(str(error).split())
    return f'{type(error).__name__}: {said:.200} ({os.path.basename(frame.filename)}:{frame.lineno})'


def unwrap_task_error(error: RuntimeError) -> NoReturn:
    """
    Overview:
        Raise the ``TaskError`` that an env manager turned into a ``RuntimeError``, or the error itself if it is \
        none.
    Arguments:
        - error (:obj:`RuntimeError`): What the env manager raised.
    Raises:
        - TaskError: If the text of ``error`` carries one.
    """
    message = TaskError.find(str(error))
    if message is None:
        raise error
    raise TaskError(message) from None


class CheckpointError(click.ClickException, RuntimeError):
    """
    Overview:
        A checkpoint that cannot be written or read.
    """


class PeerError(click.ClickException, RuntimeError):
    """
    Overview:
        A process of a run of several cannot go on because of another one: it has ended, does not answer, or does not \
        do the same.
    """
