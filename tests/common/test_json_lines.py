import pytest

from ding_common import append_json, json_lines, read_json_lines


def test_records_come_back_in_order(tmp_path):
    path = str(tmp_path / 'a' / 'b.jsonl')
    records = [dict(x=1.5, text='é\u2028\n'), dict(x=float('inf')), {}]
    for record in records:
        append_json(path, record)
    assert read_json_lines(path) == records


def test_a_line_that_a_kill_cut_is_skipped(tmp_path):
    (tmp_path / 'a.jsonl').write_text('{"x": 1}\n{"x": 2')
    assert read_json_lines(str(tmp_path / 'a.jsonl')) == [dict(x=1)]


@pytest.mark.parametrize(
    'line, why', [
        (b'{"x": ', 'JSONDecodeError: Expecting value'),
        (b'', 'JSONDecodeError: Expecting value'),
        (b'{"x": "\xff"}', "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff"),
        (b'[' * 100_000, 'RecursionError'),
        (b'{"x": ' + b'9' * 5000 + b'}', 'ValueError: Exceeds the limit'),
        (b'[1]', 'TypeError: not an object'),
        (b'{"y": 1}', "KeyError: 'x'"),
        (b'{"x": "a"}', 'ValueError: could not convert'),
    ],
    ids=lambda v: repr(v[:9])
)
def test_a_line_that_cannot_be_read_is_named_and_the_rest_is_read(tmp_path, line, why, capsys):
    path = str(tmp_path / 'a.jsonl')
    with open(path, 'wb') as f:
        f.write(b'{"x": 1}\n' + line + b'\n{"x": 2}\n' + line + b'\n' + line + b'\n')
    for _ in range(2):  # several parts of a report read a file
        assert list(json_lines(path, lambda record: float(record['x']))) == [1., 2.]
    first, more = capsys.readouterr().err.splitlines()
    assert first.startswith(f'{path}: line 2 cannot be read ({why}') and first.endswith(') and is left out')
    assert more == f'{path}: 2 more line(s) cannot be read and are left out'


def test_without_a_file(tmp_path):
    assert read_json_lines(str(tmp_path / 'a.jsonl')) == []
