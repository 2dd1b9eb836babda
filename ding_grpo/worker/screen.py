"""What a run shows on the screen: short lines. DI-engine's own log goes on in the text files of the experiment."""
import logging
import shutil
import sys

import click

from ding_common import parallel


def run_folder(exp_name: str) -> str:
    """
    Overview:
        Where DI-engine's workers write: below the current folder.
    """
    return f'./{exp_name}'


def keep_off_screen(logger: logging.Logger) -> None:
    """
    Overview:
        Leave a logger its file and take the screen from it.
    Arguments:
        - logger (:obj:`logging.Logger`): A logger of DI-engine's ``build_logger``.
    """
    logger.propagate = False


def show(text: str) -> None:
    """
    Overview:
        Print lines above the progress line, which a terminal rewrites in place. Of several processes the first one \
        does.
    """
    if parallel.rank() == 0:
        click.echo(('\r\033[K' if sys.stdout.isatty() else '') + text)


def show_progress(text: str) -> None:
    """
    Overview:
        Rewrite the terminal's last line, cut to its width: what wraps could not be rewritten.
    """
    click.echo('\r\033[K' + text[:shutil.get_terminal_size().columns - 1], nl=False)


def shorten(text: str, width: int) -> str:
    """
    Overview:
        One line of at most ``width`` characters that keeps the text's end.
    """
    text = ' '.join(text.split())
    return text if len(text) <= width else '...' + text[-(width - 3):]
