"""The short lines that a run prints on the screen. DI-engine's own log is in the text files of the experiment."""
import logging
import os
import shutil
import sys
from typing import Sequence

import click

from ding_common import parallel, printable


def run_folder(exp_name: str) -> str:
    """The folder that DI-engine's workers write to, inside the current folder."""
    return f'./{exp_name}'


def log_file(engine: 'BaseLearner', name: str) -> str:  # noqa
    return os.path.join(run_folder(engine.exp_name), 'log', engine.instance_name, name)


def keep_off_screen(logger: logging.Logger) -> None:
    """Let a logger of DI-engine write to its file only."""
    logger.propagate = False


def show(text: str) -> None:
    """Print lines above the progress line, which a terminal rewrites in place. Only the first process prints."""
    if parallel.rank() == 0:
        click.echo(('\r\033[K' if sys.stdout.isatty() else '') + printable(text))


def show_progress(fields: Sequence[str]) -> None:
    """Rewrite the terminal's last line by fields in the order of their importance, without those that do not fit into
    the terminal's width: a wrapped line cannot be rewritten."""
    width = shutil.get_terminal_size().columns - 1
    line, *rest = map(printable, fields)
    for field in rest:
        if len(line) + 2 + len(field) <= width:
            line += f'  {field}'
    click.echo('\r\033[K' + line[:width], nl=False)


def shorten(text: str, width: int) -> str:
    """Shorten a text to one line of at most ``width`` characters, keeping its end."""
    text = printable(' '.join(text.split()))
    return text if len(text) <= width else '...' + text[-(width - 3):]
