"""Files of tasks that are broken, and texts of many characters: one sentence."""
import json
import os
import time
import warnings

import pytest

from ding_common import ConfigError, TaskError
from dizoo_llm.envs import TokenEnv
from dizoo_llm.tasks import create_task
from tests.dizoo_llm.helper import PROBLEMS, file_task, play, python_task
from tests.tasks import Ask

GOOD = '{"question": "a", "answer": "1"}\n'
SCORE = '\ndef score(problem, completion):\n    return 1.0\n'
HUMAN = '{"question": [{"from": "human", "value": "a"}], "answer": "1"}'
PARTED = '{"question": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "answer": "1"}'
MISSING = 'import numpy\ndef problems():\n    return [dict(prompt="1"), dict(prompt="1", answer={})]' + SCORE
NANS = ['numpy.float32("nan")', 'numpy.datetime64("NaT")']
ASYNC = 'class S:\n    async def __call__(self, problems, completions):\n        return [1.0] * len(completions)\n'
WEIGHTS = 'weights = .*, must be a dict of names and numbers'
PART = r'return_part = .*: must be a part of the reward \(score\) or'
DATA = dict(
    jsonl=[
        (GOOD + '\n{"question": \n', 'line 3 is not valid JSON .*Expecting value'),
        (GOOD + '[' * 100_000, 'line 2 is not valid JSON .*recursion'),
        ('{"question": "a", "answer": NaN}', 'line 1 is not valid JSON .*NaN is not a JSON number'),
        ('{"question": "a", "answer": 1e999}', "line 1 has inf in 'answer' .*must be text or a number"),
        (GOOD.encode('utf-16'), 'line 1 contains a NUL byte; save the file as UTF-8'),
        (GOOD.encode() + 'é'.encode('latin-1'), 'line 2 is not valid UTF-8 .*save the file as UTF-8'),
        (GOOD + '{"question": "b"}', "line 2 has no 'answer' .env.task.answer.; it has question"),
        ('{"question": {"a": 1}, "answer": "1"}', "line 1 has {'a': 1} in 'question'.*must be text"),
        ('{"question": "a", "answer": ["1"]}', r"line 1 has \['1'\] in 'answer'.*must be text"),
        (r'{"question": "\ud800", "answer": "1"}', 'line 1 has .* must be text'),
        ('{"question": null, "answer": "1"}', "line 1 has no value in 'question'"),
        (HUMAN, 'line 1: .* neither text nor messages'),
        (PARTED, 'whose content is text: that of message 0 is a list of parts; join their texts'),
        ('[1, 2]', 'line 1 is not an object with named fields'),
        ('\n \r\n\n', 'the task has no problem for training'),
    ],
    json=[(' \n', 'is not valid JSON'), ('{"question": "a"}', 'must contain a list')],
    csv=[
        ('question,answer\na,1\n"b,2\nc,3\n', 'row that starts in line 3 is not valid CSV .*unexpected end of data'),
        ('question,answer\na,b,1\n', 'row 1 has more fields than the header'),
        ('question,answer\na\n', "row 1 has no value in 'answer'"),
    ],
    parquet=[(GOOD, 'is not a valid parquet file')],
    py=[
        ('def problems(:\n', 'SyntaxError: .*line 1'),
        ('\n1 / 0\n', r"env.task.path = '.*t.py': ZeroDivisionError: division by zero \(t.py:2\)"),
        ('import sys\nsys.exit(0)\n', 'SystemExit: 0'),
        ('raise ValueError("x" * 10 ** 6)', 'ValueError: xxx'),
        ('', 'must define a function score or score_batch, or set env.task.reward'),
        (SCORE, 'must define a function problems'),
        (PROBLEMS, 'must define a function score or score_batch'),
        (f'score_batch = 3\n{PROBLEMS}', 'must define a function score or score_batch'),
        (f'def problems():\n    return 1 / 0{SCORE}', r'problems\(\) raised ZeroDivisionError: .*\(t.py:2\)'),
        ('def problems():\n    return []\ndef score(completion, answer):\n    return 1\n', 'no problem for training'),
        (f'def problems():\n    return [1]{SCORE}', 'row 1 is not an object with named fields: 1'),
        (f'{SCORE}async {PROBLEMS}', 'problems: is defined by async def'),
        (f'{ASYNC}score = S()\n{PROBLEMS}', 'S: is defined by async def'),
        *((f'weights = {value}\n{PROBLEMS}{SCORE}', WEIGHTS) for value in ('3', 'dict(a="b")', '{1: 1.0}')),
        *((f'return_part = {name}\n{PROBLEMS}{SCORE}', PART) for name in ("'c'", "['score']")),
        *((MISSING.format(value), 'row 2 has .*(nan|NaT).* in .answer.') for value in NANS),
    ],
)


class TestTaskFile:

    @pytest.mark.parametrize(
        'kind, content, message', [(kind, *case) for kind, cases in DATA.items() for case in cases],
        ids=lambda v: repr(v[:24])
    )
    def test_what_is_wrong_and_where(self, tmp_path, kind, content, message):
        if kind == 'parquet':
            pytest.importorskip('pyarrow')
        with pytest.raises(ConfigError, match=message) as caught:
            python_task(tmp_path, content) if kind == 'py' else file_task(tmp_path / f'a.{kind}', content)
        assert len(caught.value.message) < 1000 and '\n' not in caught.value.message

    def test_words_that_are_no_list(self, tmp_path):
        with pytest.raises(ConfigError, match='env.task: FileTask.words = {.*}: must be a list of words'):
            TokenEnv(python_task(tmp_path, f"words = {{'a', 'log'}}\n{PROBLEMS}{SCORE}"))

    def test_neither_a_mark_at_the_beginning_nor_separators_of_lines_inside_a_text_are_faults(self, tmp_path):
        row = json.dumps(dict(question='a\u2028b\x85', answer='1'), ensure_ascii=False)
        task = file_task(tmp_path / 'a.jsonl', f'{row}\r\n{row}\r'.encode('utf-8-sig'))
        assert task.problem(0).prompt == task.problem(1).prompt == 'a\u2028b\x85'

    @pytest.mark.skipif(os.geteuid() == 0, reason='root reads everything')
    def test_a_file_that_may_not_be_read(self, tmp_path):
        (tmp_path / 'a.jsonl').touch(mode=0)
        with pytest.raises(ConfigError, match='Permission denied'):
            create_task(dict(type='file', path=str(tmp_path / 'a.jsonl')))

    def test_contradicting_answers_are_told_once(self, tmp_path):
        rows = [dict(question='a', answer=answer) for answer in ('1', '1.0', '2', '3')]
        told = r"2 row\(s\) repeat a question .* for example line 3 after line 1: '2', not '1'"
        with pytest.warns(UserWarning, match=told) as warned:
            file_task(tmp_path / 'a.jsonl', rows, check='number')
        assert len(warned) == 1
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            file_task(tmp_path / 'a.jsonl', rows[:2], check='number')  # the same number, written otherwise

    def test_a_link_out_of_the_folder(self, tmp_path):
        (tmp_path / 'data').mkdir()
        for name, target in (('a', tmp_path / 'secret.jsonl'), ('b', 'real.jsonl')):
            (tmp_path / 'data' / target).write_text(GOOD)
            (tmp_path / 'data' / f'{name}.jsonl').symlink_to(target)
        with pytest.raises(ConfigError, match='a.jsonl is a link to .*secret.jsonl, outside the folder'):
            create_task(dict(type='file', path=str(tmp_path / 'data' / 'a.jsonl')))
        assert len(create_task(dict(type='file', path=str(tmp_path / 'data' / 'b.jsonl')))) == 1


class TestLongTexts:

    @pytest.mark.parametrize(
        'options, message', [
            (dict(), 'None: 1 of 1 prompts .* have more than 32768 tokens, the longest has 300000: .aaa'),
            (dict(max_prompt_length=9), '300000 tokens, must have 1 to env.max_prompt_length = 9'),
            (dict(tokenizer=dict(chars='b')), "no token for .'a'. in 'aaa"),
        ]
    )
    def test_a_prompt_of_many_characters(self, options, message):
        start = time.process_time()
        with pytest.raises((ConfigError, TaskError), match=message) as caught:
            TokenEnv(Ask('a' * 300_000), **{'tokenizer': dict(chars='a'), **options}).reset(seed=0)
        assert len(caught.value.message) < 500 and time.process_time() - start < 20

    def test_what_failed_is_told_in_short(self):
        env = TokenEnv(Ask('a' * 5000), tokenizer=dict(chars='a'), max_new_tokens=1)
        (*_, info), = play(env, 0)
        assert 'raised ValueError: bbb' in info['failed'] and len(info['failed']) < 1000
