import json
from decimal import Decimal

import numpy as np
import pytest

from ding_common import ConfigError, TaskError
from dizoo_llm.envs import TokenEnv
from dizoo_llm.tasks import create_task

GSM8K = [
    dict(
        question=f'Tom has {n} apples and buys {n + 1}. How many?',
        answer=f'{n} + {n + 1} = {2 * n + 1}\n#### {2 * n + 1}'
    ) for n in range(20)
]


def write(path, rows):
    path.write_text('\n'.join(json.dumps(row) for row in rows), encoding='utf-8')
    return str(path)


@pytest.fixture
def gsm8k(tmp_path):
    return dict(
        type='file', path=write(tmp_path / 'train.jsonl', GSM8K), reference_in='####', answer_in='####', check='number'
    )


@pytest.mark.unittest
class TestFile:

    def test_gsm8k_as_downloaded(self, gsm8k):
        task = create_task(gsm8k)
        problem = task.problem(3)
        assert len(task) == 20 and problem.prompt == GSM8K[3]['question'] and problem.answer == '7'
        assert task.checked_score(problem, 'it is\n#### 7') == dict(right=1)
        assert task.checked_score(problem, 'it is 7') == dict(right=0)
        assert problem.metadata['solution'] == GSM8K[3]['answer']

    @pytest.mark.parametrize('ending', ['json', 'csv', 'parquet'])
    def test_other_files_hold_the_same(self, gsm8k, tmp_path, ending):
        path = tmp_path / f'train.{ending}'
        if ending == 'json':
            path.write_text(json.dumps(GSM8K))
        elif ending == 'csv':
            import csv
            with open(path, 'w', newline='') as f:
                writer = csv.DictWriter(f, ['question', 'answer'])
                writer.writeheader()
                writer.writerows(GSM8K)
        else:
            pa = pytest.importorskip('pyarrow')
            from pyarrow import parquet
            parquet.write_table(pa.Table.from_pylist(GSM8K), path)
        task, expected = create_task(dict(gsm8k, path=str(path))), create_task(gsm8k)
        assert [task.problem(i) for i in range(20)] == [expected.problem(i) for i in range(20)]

    @pytest.mark.parametrize(
        'kind, values, written', [
            (
                'float64', [42.0, -0.0, 0.1, 1e-7, 1e16, 2.5
                            ], ['42', '0', '0.1', '0.0000001', '10000000000000000', '2.5']
            ),
            ('float32', [42.0, 0.1, 3.3], ['42', '0.1', '3.3']),
            ('int64', [42, -7], ['42', '-7']),
            ('decimal128(10, 2)', ['42.00', '100.00', '2.50', '0.05'], ['42', '100', '2.5', '0.05']),
            ('bool_', [True, False], ['True', 'False']),
            ('string', ['42.0', '007'], ['42.0', '007']),
        ]
    )
    def test_numbers_of_a_table_are_written_as_people_write_them(self, tmp_path, kind, values, written):
        pa = pytest.importorskip('pyarrow')
        from pyarrow import parquet
        if kind.startswith('decimal'):
            values = list(map(Decimal, values))
        column = pa.array(values, eval(f'pa.{kind}' if '(' in kind else f'pa.{kind}()'))
        numbers = [str(i) for i in range(len(values))]
        path = str(tmp_path / 'a.parquet')
        parquet.write_table(pa.table(dict(question=numbers, answer=column, kind=column)), path)
        task = create_task(dict(type='file', path=path, kind='kind'))
        problems = [task.problem(i) for i in range(len(values))]
        assert [problem.answer for problem in problems] == written
        assert [problem.metadata['kind'] for problem in problems] == written
        assert [task.demonstration(problem) for problem in problems] == written
        assert all(task.checked_score(p, text) == dict(right=1) for p, text in zip(problems, written))

    def test_held_out_problems_are_not_trained_on(self, gsm8k, tmp_path):
        rows = GSM8K + GSM8K[:7]  # some twice
        task = create_task(dict(gsm8k, path=write(tmp_path / 'twice.jsonl', rows), eval_size=5, seed=1))
        held_out = task.evaluation()
        training = {task.problem(i).text for i in range(len(task))}
        evaluated = {held_out.problem(i).text for i in range(len(held_out))}
        assert len(held_out) == len(evaluated) == 5 and not training & evaluated
        assert training | evaluated == {row['question'] for row in rows}
        other = create_task(dict(gsm8k, eval_size=5, seed=2)).evaluation()
        assert {other.problem(i).text for i in range(5)} != evaluated

    def test_an_empty_file_for_evaluation_is_no_evaluation_on_training(self, gsm8k, tmp_path):
        (tmp_path / 'none.jsonl').write_text('')
        with pytest.raises(ConfigError, match='no problem for evaluation'):
            create_task(dict(gsm8k, eval_path=str(tmp_path / 'none.jsonl')))

    @pytest.mark.parametrize(
        'options, expected', [
            (dict(), GSM8K[0]['answer']), (dict(answer_in='boxed'), '\\boxed{1}'),
            (dict(answer_in='answer_tag'), '<answer>1</answer>'), (dict(answer_in='whole'), '1')
        ]
    )
    def test_what_is_demonstrated_is_right(self, gsm8k, options, expected):
        task = create_task(dict(gsm8k, **options))
        shown = task.demonstration(task.problem(0))
        assert shown == expected and task.checked_score(task.problem(0), shown) == dict(right=1)

    @pytest.mark.parametrize(
        'row, message', [
            (dict(question=None, answer='#### 1'), "line 1 has no value in 'question'"),
            (dict(question=[{
                'from': 'human',
                'value': 'a'
            }], answer='#### 1'), 'line 1: .* neither text nor messages'),
            (
                dict(
                    question=[
                        dict(role='system', content='b'),
                        dict(role='user', content=[dict(type='text', text='a')])
                    ],
                    answer='#### 1'
                ), 'whose content is text: that of message 1 is a list of parts; join their texts'
            ),
        ]
    )
    def test_a_row_without_a_problem(self, gsm8k, tmp_path, row, message):
        with pytest.raises(ConfigError, match=message):
            create_task(dict(gsm8k, path=write(tmp_path / 'row.jsonl', [row])))

    def test_texts_that_occur_several_times(self, tmp_path):
        rows = [dict(question=str(i % 3), answer='1') for i in range(12)]
        options = dict(type='file', path=write(tmp_path / 'twice.jsonl', rows))
        with pytest.raises(ConfigError) as refused:
            create_task(dict(options, eval_size=5))
        assert refused.value.message == (
            'env.task.eval_size = 5: there is no problem for training. The 3 held-out problem(s) are those of all 12 '
            'problems, in the same or in another form. Lower eval_size, or add problems.'
        )
        with pytest.raises(ConfigError, match='env.task.eval_path: there is no .* Use other problems in it.'):
            create_task(dict(options, eval_path=options['path']))
        with pytest.warns(UserWarning, match='eval_size = 1: 4 of 12 problems are not trained, because'):
            assert len(create_task(dict(options, eval_size=1))) == 8

    def test_chat_template_and_kind(self, gsm8k, tmp_path):
        chat = [dict(role='user', content='1 + 1?')]
        path = write(tmp_path / 'chat.jsonl', [dict(messages=chat, answer='2', level='easy')])
        task = create_task(dict(type='file', path=path, prompt='messages', kind='level'))
        assert task.problem(0).prompt == chat and task.problem(0).metadata['kind'] == 'easy'
        assert task.problem(0).text == 'user: 1 + 1?'
        asked = create_task(dict(gsm8k, template='Q: {prompt}\nA:'))
        assert asked.problem(0).prompt == f"Q: {GSM8K[0]['question']}\nA:"

    @pytest.mark.parametrize(
        'changes, message', [
            (dict(path='none.jsonl'), "env.task.path = 'none.jsonl': there is no such file"),
            (dict(path='x.txt'), r"env.task.path = 'x.txt': must end in .jsonl, .json, .csv, .parquet"),
            (dict(prompt='quest'), "line 1 has no 'quest'.* it has question, answer"),
            (dict(reference_in='boxed'), "line 1: env.task.reference_in = 'boxed' finds no answer"),
            (dict(check='exactly'), "env.task.check = 'exactly': did you mean 'exact'"),
            (dict(answer_in='tag'), "env.task.answer_in = 'tag'"),
            (dict(template='Q'), r"env.task.template = 'Q': must contain \{prompt\}"),
            (dict(eval_size=20), 'no problem for training'),
            (dict(wrong=1), 'wrong'),
            (dict(eval_size=-1), 'env.task.eval_size = -1: must be an integer of at least 0'),
            (dict(reference_in='whole'), "line 1: env.task.check = 'number' rejects the reference answer '0 \\+ 1 = 1"),
        ],
        ids=str
    )
    def test_wrong_config(self, gsm8k, changes, message):
        with pytest.raises(ConfigError, match=message):
            create_task(dict(gsm8k, **changes))


@pytest.mark.unittest
class TestPython:

    def task(self, tmp_path, text, **more):
        path = tmp_path / 'my_task.py'
        path.write_text(text)
        return create_task(dict(type='python', file=str(path), **more))

    def test_two_functions_are_a_task(self, tmp_path):
        task = self.task(
            tmp_path, "def problems():\n    return [dict(prompt=str(n), answer=n + 1) for n in range(9)]\n"
            "def score(problem, completion):\n    return float(completion.strip() == str(problem['answer']))\n"
        )
        assert len(task) == 9 and len(task.evaluation()) == 9
        assert task.checked_score(task.problem(3), ' 4') == dict(score=1)

    @pytest.mark.parametrize(
        'value, text', [
            (42.0, '42'), (np.float32(0.1), '0.1'), (np.int64(7), '7'), (np.float64(1e3), '1000'), (1e300, '1e+300'),
            (Decimal('1E+3'), '1000'), (True, 'True'), ('42.0', '42.0'), ([4.0], '[4.0]'), (None, ''),
            (10 ** 30, f'{10 ** 30}')
        ]
    )
    def test_an_answer_is_written_as_people_write_it(self, tmp_path, monkeypatch, value, text):
        monkeypatch.setattr(np, 'given_to_the_task', value, raising=False)
        task = self.task(
            tmp_path, 'import numpy\ndef problems():\n    return [dict(prompt="1", answer=numpy.given_to_the_task)]\n'
            'def score(p, c):\n    return 1\n'
        )
        assert task.problem(0).answer == text

    @pytest.mark.parametrize('value', ['float("nan")', 'numpy.float32("nan")', 'numpy.datetime64("NaT")'])
    def test_an_answer_that_is_missing(self, tmp_path, value):
        with pytest.raises(ConfigError, match='problem 1 has the answer .*(nan|NaT).*Leave out the problem'):
            self.task(
                tmp_path,
                f'import numpy\ndef problems():\n    return [dict(prompt="1"), dict(prompt="1", answer={value})]\n'
                'def score(p, c):\n    return 1\n'
            )

    @pytest.mark.parametrize('name', ["'c'", '3', "['a']"])
    def test_a_return_part_that_is_none(self, tmp_path, name):
        parts = "weights = dict(a=1.0, b=0.5)\nreturn_part = {}\ndef score(p, c):\n    return dict(a=1, b=2)\n"
        assert self.task(tmp_path, self.PROBLEMS + parts.format("'b'")).return_part == 'b'
        with pytest.raises(ConfigError, match=r'return_part = .*: must be a part of the reward \(a, b\) or None'):
            self.task(tmp_path, self.PROBLEMS + parts.format(name))

    @pytest.mark.parametrize('parts', ['dict(a=1, log=2)', "{'a', 'log'}", 'dict(a=1, b=2, c=3)'])
    def test_parts_that_the_weights_do_not_name(self, tmp_path, parts):
        """The most common case: parts that are only to be logged."""
        scorer = f"weights = dict(a=1.0, b=0.5)\ndef score(p, c):\n    return {parts}\n"
        task = self.task(tmp_path, self.PROBLEMS + scorer)
        with pytest.raises(TaskError) as failed:
            task.checked_score(task.problem(0), '')
        assert 'must score exactly the parts that weights names (a, b), as a dict' in failed.value.message

    def test_several_parts_with_weights(self, tmp_path):
        task = self.task(
            tmp_path, "weights = dict(a=1.0, b=0.5)\nchars = 'xyz'\n"
            "def problems():\n    return [dict(prompt=c) for c in 'xyz']\n"
            "def score(problem, completion):\n    return dict(a=1, b=None)\n",
            eval_size=1
        )
        assert task.weights == dict(a=1, b=0.5) and task.chars == 'xyz'
        assert len(task) == 2 and len(task.evaluation()) == 1
        assert task.checked_score(task.problem(0), '') == dict(a=1, b=None)

    PROBLEMS = "def problems():\n    return [dict(prompt=str(n), answer=n + 1) for n in range(9)]\n"
    BATCH = (
        "def score_batch(problems, completions):\n"
        "    if len(completions) == 9:\n        return None\n"
        "    return [{}(c == str(p['answer'])) if c else KeyError('empty') for p, c in zip(problems, completions)]\n"
    )

    @pytest.mark.parametrize('parts', ['float', 'lambda right: dict(score=right)'])
    def test_a_function_for_batches(self, tmp_path, parts):
        task = self.task(tmp_path, self.PROBLEMS + self.BATCH.format(f'({parts})'), eval_size=2)
        for part in (task, task.evaluation()):
            problems = [part.problem(i) for i in (0, 1, 0)]
            right, wrong, failed = part.checked_scores(problems, [str(problems[0].answer), 'x', ''])
            assert (right, wrong) == (dict(score=1), dict(score=0)) and "KeyError: 'empty'" in failed.message
            assert part.checked_score(problems[1], str(problems[1].answer)) == dict(score=1)
            failed = part.checked_scores(problems * 3, ['x'] * 9)
            assert all('score_batch returned None, must return a list of 9' in error.message for error in failed)

    def test_both_functions(self, tmp_path):
        task = self.task(tmp_path, f'{self.PROBLEMS}{self.BATCH.format("float")}def score(p, c):\n    return 5\n')
        assert task.checked_score(task.problem(0), '1') == dict(score=5)
        assert task.checked_scores([task.problem(0)] * 2, ['1', '2']) == [dict(score=1), dict(score=0)]

    @pytest.mark.parametrize(
        'text, message', [
            (
                "words = {'a', 'log'}\ndef problems():\n    return [dict(prompt='a')]\ndef score(p, c):\n    return 1",
                "env.task: PythonTask.words = {.*}: must be a list of words"
            ),
            (
                'def problems():\n    return [dict(prompt=[dict(role="user", content=[dict(text="a")])])]\n'
                'def score(p, c):\n    return 1', 'that of message 0 is a list of parts; join their texts'
            ),
            ('def problems():\n    return []', 'must define a function score or score_batch'),
            ('score_batch = 3\ndef problems():\n    return []', 'must define a function score or score_batch'),
            ('def problems():\n    return [1]\ndef score(p, c):\n    return 1', 'problem 0 is 1, must be a dict'),
            (
                'def problems():\n    return [dict(prompt=3)]\ndef score(p, c):\n    return 1',
                'problem 0 has the prompt 3'
            ),
        ]
    )
    def test_wrong_file(self, tmp_path, text, message):
        with pytest.raises(ConfigError, match=message):
            TokenEnv(self.task(tmp_path, text))

    def test_no_file(self):
        with pytest.raises(ConfigError, match="env.task.file = 'gone.py': there is no such file"):
            create_task(dict(type='python', file='gone.py'))
