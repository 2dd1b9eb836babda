import re
from typing import NoReturn

import click


class ConfigError(click.ClickException, ValueError):
    """
    Overview:
        A config that cannot be run. As a ``click.ClickException`` it makes ``ding`` print one line and exit with 1;
        as a ``ValueError`` it is what a Python caller expects.
    """


class TaskError(click.ClickException, RuntimeError):
    """
    Overview:
        A task that raised, or scored with something else than the finite parts it declares.
        DI-engine's env managers hand on the text of an exception, not the exception: the text is therefore
        enclosed in marks by which ``unwrap_task_error`` finds it again.
    """

    _pattern = re.compile(r'\[task error\](.*)\[end of task error\]', re.DOTALL)

    def __str__(self) -> str:
        return f'[task error]{self.message}[end of task error]'


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
    found = TaskError._pattern.search(str(error))
    if found is None:
        raise error
    raise TaskError(found.group(1)) from None
