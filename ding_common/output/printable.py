"""Texts of models and of data files, as they leave the program."""
import unicodedata
from typing import Callable

import click


def printable(text: str, escape: Callable[[str], str] = lambda c: repr(c)[1:-1]) -> str:
    """
    The text with escapes such as ``\\x1b`` in place of unprintable characters, which a terminal would obey, and which
    can hide or reorder what follows. Spaces of all kinds and line breaks stay.
    """
    if text.isprintable():
        return text
    return ''.join(c if c.isprintable() or c == '\n' or unicodedata.category(c) == 'Zs' else escape(c) for c in text)


def echo(text: str, err: bool = False) -> None:
    """Print a text that may quote a model or a data file."""
    click.echo(printable(text), err=err)
