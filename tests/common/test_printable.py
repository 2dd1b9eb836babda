"""No text of a model or a data file reaches a terminal as anything but text."""
import json

import pytest

from ding_common import (
    CheckpointError, ConfigError, NumericError, PeerError, TaskError, append_json, printable, read_json_lines
)
from ding_grpo.logs.screen import shorten, show, show_progress

HOSTILE = '\x1b[2J\x1b]0;title\x07\x9b31m\r\x08\x7f\u202e\u2066\u200b\ud800'
SHOWN = r'\x1b[2J\x1b]0;title\x07\x9b31m\r\x08\x7f\u202e\u2066\u200b\ud800'


def test_unprintable_characters_are_escapes_and_all_others_stay():
    assert printable(HOSTILE) == SHOWN and SHOWN.isprintable()
    for text in ('', 'plain', 'é ß 漢字 🙂', 'two\nlines', 'a\u3000b\xa0c', '\\x1b'):
        assert printable(text) == text


@pytest.mark.parametrize('kind', [CheckpointError, ConfigError, NumericError, PeerError, TaskError])
def test_errors(kind, capsys):
    kind(f'first\nsecond {HOSTILE}').show()
    assert capsys.readouterr().err == f'Error: first\nsecond {SHOWN}\n'


def test_the_screen(capsys):
    show(HOSTILE)
    show_progress([HOSTILE])
    assert capsys.readouterr().out == f'{SHOWN}\n\r{SHOWN}'
    assert shorten('a\n\x1b[2J\r\u202eb', 100) == r'a \x1b[2J \u202eb' and len(shorten(HOSTILE * 9, 30)) == 30
    assert shorten('0123456789', 7) == '...6789'


def test_files_of_json_lines_keep_the_text_and_hold_no_such_character(tmp_path):
    path = str(tmp_path / 'a.jsonl')
    record = {HOSTILE: ['a\n\tb', '漢字 🙂', HOSTILE, '\U000e0001']}
    append_json(path, record)
    text = open(path, encoding='utf-8').read()
    assert text.rstrip('\n').isprintable() and '漢字 🙂' in text and json.loads(text) == record
    assert read_json_lines(path) == [record]
