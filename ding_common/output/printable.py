"""Texts of models and of data files, as they leave the program."""
import unicodedata
from typing import Callable

import click


def printable(text: str, escape: Callable[[str], str] = lambda c: repr(c)[1:-1]) -> str:
    """The text with escapes such as ``\\x1b`` for unprintable characters except spaces and line breaks: a terminal
    would obey them, and they can hide or reorder what follows."""
    if text.isprintable():
        return text
    return ''.join(c if c.isprintable() or c == '\n' or unicodedata.category(c) == 'Zs' else escape(c) for c in text)


def counted(number: int, noun: str) -> str:
    """A number of things: 1 update, 2 updates."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def echo(text: str, err: bool = False) -> None:
    """Print a text that may quote a model or a data file."""
    click.echo(printable(text), err=err)
