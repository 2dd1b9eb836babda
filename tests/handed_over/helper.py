"""
What somebody else hands over: folders of runs, adapters, models and tokenizers, and checkpoints. No code in it runs,
nothing outside of it is read, nothing hangs, and what is refused ends in one line.

A case has a name, a function that makes the input in an empty folder, a function that uses it as a user would, and a
part of the line that the user sees, or '' where the input does no harm and is used.
"""
import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any, Callable, NamedTuple
from unittest import mock

import click
from safetensors.torch import load_file, save_file

from ding_common.hub.language_model import build_causal_lm
from dizoo_llm.text.template import SERVERS

SECRET = '{"train_iter": 1, "secret": 42}\n'
CODE = 'open({path!r}, "w")'  # what no case may run
DEEP = '[' * 100_000


class Case(NamedTuple):
    name: str
    make: Callable[[Path], Any]
    use: Callable[[Path], Any]
    told: str


def name_of(case):
    return case.name.replace(' ', '-')


def check(case, handed):
    case.make(handed)
    with mock.patch.object(SERVERS, 'seconds', 1.0 if case.told else SERVERS.seconds):
        try:
            case.use(handed)
            told = ''
        except click.ClickException as error:
            told = error.format_message()
    assert bool(told) == bool(case.told) and case.told in told, told
    assert '\n' not in told and len(told) < 1000
    loads = getattr(case.use, 'func', case.use) is load
    assert not loads or not told or told.startswith(f"policy.model.pretrained = '{handed}'")
    assert not code_ran(handed)
    assert (handed.parent / 'outside' / 'secret.jsonl').read_text() == SECRET


def code_ran(handed):
    return (handed.parent / 'CODE_RAN').exists()


# ------------------------------------------------------------------------------------------------------------- to make


def of(name, *harms):
    """A copy of a folder of the fixture ``good``, to which harm is done."""

    def make(folder):
        shutil.copytree(folder.parent / 'good' / name, folder, dirs_exist_ok=True)
        for harm in harms:
            harm(folder)

    return make


def change(name, **values):
    """Other values in a JSON file."""

    def harm(folder):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return harm


def write(name, text):
    return lambda folder: (folder / name).write_text(text)


def remove(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def pipe(name):
    """A pipe in place of a file."""
    return lambda folder: (remove(name)(folder), os.mkfifo(folder / name))


def lead_outside(name):
    """A link in place of a file."""

    def harm(folder):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(folder.parent / 'outside' / 'secret.jsonl')

    return harm


def weights_of(name, convert):
    """Other weights in a file of safetensors: a function of those that it has."""
    return lambda folder: save_file(convert(load_file(folder / name)), folder / name, dict(format='pt'))


def compress(path):
    """Write the records of a file of torch again, compressed."""
    with zipfile.ZipFile(path) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
        for name, content in records.items():
            archive.writestr(name, content)


class Evil:
    """An object whose pickle runs code."""

    def __init__(self, folder):
        self.path = str(folder.parent / 'CODE_RAN')

    def __reduce__(self):
        return open, (self.path, 'w')


# -------------------------------------------------------------------------------------------------------------- to use


def load(folder, dtype=None, gguf_file=None):
    return build_causal_lm(str(folder), None, dtype, None, 'policy.model', gguf_file)
