import pytest

from ding_common import append_json, read_json_lines
from ding_grpo.logs.screen import shorten, show


@pytest.mark.unittest
class TestScreen:

    def test_json_lines_come_back(self, tmp_path):
        path = str(tmp_path / 'a' / 'b.jsonl')
        records = [dict(x=1, text='ä\n</think>'), dict(x=2.5)]
        for record in records:
            append_json(path, record)
        assert read_json_lines(path) == records
        assert read_json_lines(str(tmp_path / 'none')) == []

    def test_shorten_keeps_the_end_on_one_line(self):
        assert shorten('a\n b', 10) == 'a b'
        assert shorten('0123456789', 7) == '...6789'

    def test_show_leaves_no_control_codes_in_a_file(self, capsys):
        show('hello')
        assert capsys.readouterr().out == 'hello\n'
