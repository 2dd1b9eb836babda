"""Files of tasks that are broken, and texts of a million characters: one sentence."""
import json
import os
import time
import warnings

import pytest

from ding_common import ConfigError, TaskError
from dizoo_llm.envs import TokenEnv
from dizoo_llm.tasks import create_task
from tests.tasks import Ask

GOOD = '{"question": "a", "answer": "1"}\n'
DEEP = '[' * 100_000


def create(path, content, **options):
    path.write_bytes(content if isinstance(content, bytes) else content.encode('utf-8'))
    return create_task(dict(type='file', path=str(path), **options))


@pytest.mark.unittest
class TestTaskFile:

    @pytest.mark.parametrize(
        'name, content, message', [
            ('a.jsonl', GOOD + '\n{"question": \n', 'line 3 is not valid JSON .*Expecting value'),
            ('a.jsonl', GOOD + DEEP, 'line 2 is not valid JSON .*recursion'),
            (
                'a.jsonl', GOOD + '{"question": "a", "answer": ' + '9' * 5000 + '}',
                'line 2 is not valid JSON .*4300 digits'
            ),
            ('a.jsonl', '{"question": "a", "answer": NaN}', 'line 1 is not valid JSON .*NaN is not a JSON number'),
            ('a.jsonl', '{"question": "a", "answer": -Infinity}', '-Infinity is not a JSON number'),
            ('a.jsonl', '{"question": "a", "answer": 1e999}', "line 1 has inf in 'answer' .*must be text or a number"),
            ('a.jsonl', GOOD.encode('utf-16'), 'line 1 contains a NUL byte; save the file as UTF-8'),
            ('a.jsonl', GOOD.encode('utf-16')[:2], 'line 1 is not valid UTF-8 .*save the file as UTF-8'),
            ('a.jsonl', GOOD.encode() + 'é'.encode('latin-1'), 'line 2 is not valid UTF-8 .*save the file as UTF-8'),
            ('a.jsonl', GOOD + 'a\0b', 'line 2 contains a NUL byte'),
            ('a.jsonl', GOOD + '{"question": "b"}', "line 2 has no 'answer' .env.task.answer.; it has question"),
            ('a.jsonl', '{"question": {"a": 1}, "answer": "1"}', "line 1 has {'a': 1} in 'question'.*must be text"),
            ('a.jsonl', '{"question": "a", "answer": ["1"]}', r"line 1 has \['1'\] in 'answer'.*must be text"),
            ('a.jsonl', r'{"question": "\ud800", "answer": "1"}', 'line 1 has .* must be text'),
            ('a.jsonl', '[1, 2]', 'line 1 is not an object with named fields'),
            ('a.jsonl', '', 'the task has no problem for training'),
            ('a.jsonl', '\n \r\n\n', 'the task has no problem for training'),
            ('a.json', ' \n', 'is not valid JSON'),
            ('a.json', DEEP, 'is not valid JSON .*recursion'),
            ('a.json', '{"question": "a"}', 'must contain a list'),
            ('a.json', '[{"question": "a", "answer": "1"}, 5]', 'row 2 is not an object with named fields: 5'),
            (
                'a.csv', 'question,answer\na,1\n"b,2\nc,3\n',
                'the row that starts in line 3 is not valid CSV .*unexpected end of data'
            ),
            ('a.csv', 'question,answer\n"a"b,1\n', 'line 2 is not valid CSV .*expected after'),
            ('a.csv', 'question,answer\n' + 'a' * 200_000 + ',1\n', 'line 2 is not valid CSV .*field limit'),
            ('a.csv', 'question,answer\na,b,1\n', 'row 1 has more fields than the header'),
            ('a.csv', 'question,answer\na\n', "row 1 has no value in 'answer'"),
            ('a.csv', '', 'the task has no problem for training'),
            ('a.parquet', GOOD, 'is not a valid parquet file'),
            ('a.parquet', '', 'is not a valid parquet file'),
        ],
        ids=lambda v: repr(v[:24])
    )
    def test_what_is_wrong_and_where(self, tmp_path, name, content, message):
        if name.endswith('parquet'):
            pytest.importorskip('pyarrow')
        with pytest.raises(ConfigError, match=message) as caught:
            create(tmp_path / name, content)
        assert len(caught.value.message) < 1000 and '\n' not in caught.value.message

    def test_a_mark_at_the_beginning_is_no_fault(self, tmp_path):
        assert create(tmp_path / 'a.jsonl', GOOD.encode('utf-8-sig')).problem(0).prompt == 'a'
        assert create(tmp_path / 'a.json', f'[{GOOD}]'.encode('utf-8-sig')).problem(0).prompt == 'a'
        assert create(tmp_path / 'a.csv', 'question,answer\na,1\n'.encode('utf-8-sig')).problem(0).prompt == 'a'

    def test_separators_of_lines_inside_a_text_do_not_end_it(self, tmp_path):
        row = json.dumps(dict(question='a\u2028b\x85', answer='1'), ensure_ascii=False)
        assert create(tmp_path / 'a.jsonl', f'{row}\r\n{row}\r').problem(1).prompt == 'a\u2028b\x85'

    def test_a_folder_is_no_file(self, tmp_path):
        (tmp_path / 'a.jsonl').mkdir()
        with pytest.raises(ConfigError, match="env.task.path = '.*a.jsonl': is not a file"):
            create_task(dict(type='file', path=str(tmp_path / 'a.jsonl')))

    @pytest.mark.skipif(os.geteuid() == 0, reason='root reads everything')
    def test_a_file_that_may_not_be_read(self, tmp_path):
        (tmp_path / 'a.jsonl').touch(mode=0)
        with pytest.raises(ConfigError, match='Permission denied'):
            create_task(dict(type='file', path=str(tmp_path / 'a.jsonl')))

    def test_contradicting_answers_are_told_once(self, tmp_path):
        rows = ['{"question": "a", "answer": "%s"}' % answer for answer in ('1', '1.0', '2', '3')]
        with pytest.warns(
                UserWarning,
                match=r"2 row\(s\) repeat a question .* for example line 3 after line 1: '2', not '1'") as told:
            create(tmp_path / 'a.jsonl', '\n'.join(rows), check='number')
        assert len(told) == 1
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            create(tmp_path / 'a.jsonl', '\n'.join(rows[:2]), check='number')  # the same number, written otherwise

    def test_a_link_out_of_the_folder(self, tmp_path):
        (tmp_path / 'secret.jsonl').write_text(GOOD)
        (tmp_path / 'data').mkdir()
        (tmp_path / 'data' / 'a.jsonl').symlink_to(tmp_path / 'secret.jsonl')
        (tmp_path / 'data' / 'real.jsonl').write_text(GOOD)
        (tmp_path / 'data' / 'b.jsonl').symlink_to('real.jsonl')
        with pytest.raises(ConfigError, match='a.jsonl is a link to .*secret.jsonl, outside the folder'):
            create_task(dict(type='file', path=str(tmp_path / 'data' / 'a.jsonl')))
        assert len(create_task(dict(type='file', path=str(tmp_path / 'data' / 'b.jsonl')))) == 1


SCORE = '\ndef score(problem, completion):\n    return 1.0\n'


@pytest.mark.unittest
@pytest.mark.parametrize(
    'content, message', [
        ('def problems(:\n', 'SyntaxError: .*line 1'),
        ('\n1 / 0\n', r"env.task.file = '.*t.py': ZeroDivisionError: division by zero \(t.py:2\)"),
        ('import sys\nsys.exit(0)\n', 'SystemExit: 0'),
        ('raise ValueError("x" * 10 ** 6)', 'ValueError: xxx'),
        (b'\xff\xfe', 'SyntaxError'),
        ('', 'must define a function problems'),
        ('def problems():\n    return 1 / 0' + SCORE, r'problems\(\) raised ZeroDivisionError: .*\(t.py:2\)'),
        ('def problems():\n    return None' + SCORE, r'problems\(\) raised TypeError'),
        ('def problems():\n    return []' + SCORE, 'no problem for training'),
        ('weights = 3\ndef problems():\n    return [dict(prompt="a")]' + SCORE, 'weights = 3, must be a dict'),
        ('weights = dict(a="b")\ndef problems():\n    return [dict(prompt="a")]' + SCORE, 'must be a dict of names'),
    ],
    ids=lambda v: repr(v[:24])
)
def test_python_file(tmp_path, content, message):
    path = tmp_path / 't.py'
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=message) as caught:
        create_task(dict(type='python', file=str(path)))
    assert len(caught.value.message) < 1000 and '\n' not in caught.value.message


@pytest.mark.unittest
class TestLongTexts:

    @pytest.mark.parametrize(
        'options, message', [
            (dict(), 'None: 1 of 1 prompts .* have more than 32768 tokens, the longest has 1000000: .aaa'),
            (dict(max_prompt_length=9), '1000000 tokens, must have 1 to env.max_prompt_length = 9'),
            (dict(tokenizer=dict(chars='b')), "no token for .'a'. in 'aaa"),
        ]
    )
    def test_a_prompt_of_a_million_characters(self, options, message):
        start = time.monotonic()
        with pytest.raises((ConfigError, TaskError), match=message) as caught:
            for _ in range(8):  # environments share what was read
                TokenEnv(Ask('a' * 10 ** 6), **{'tokenizer': dict(chars='a'), **options}).reset(seed=0)
        assert len(caught.value.message) < 500 and time.monotonic() - start < 20

    def test_what_failed_is_told_in_short(self):
        env = TokenEnv(Ask('a' * 5000), tokenizer=dict(chars='a'), max_new_tokens=1)
        env.reset(seed=0)
        *_, info = env.step([0])
        assert 'raised ValueError: bbb' in info['failed'] and len(info['failed']) < 1000
