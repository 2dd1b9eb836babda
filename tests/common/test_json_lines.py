import pytest

from ding_common import append_json, read_json_lines


@pytest.mark.unittest
class TestJSONLines:

    def test_records_come_back_in_order(self, tmp_path):
        path = str(tmp_path / 'a' / 'b.jsonl')
        records = [dict(x=1.5, text='é\u2028\n'), dict(x=float('inf')), {}]
        for record in records:
            append_json(path, record)
        assert read_json_lines(path) == records

    def test_a_line_that_a_kill_cut_is_skipped(self, tmp_path):
        (tmp_path / 'a.jsonl').write_text('{"x": 1}\n{"x": 2')
        assert read_json_lines(str(tmp_path / 'a.jsonl')) == [dict(x=1)]

    def test_without_a_file(self, tmp_path):
        assert read_json_lines(str(tmp_path / 'a.jsonl')) == []
