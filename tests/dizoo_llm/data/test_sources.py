"""Where the rows of a task come from, and which of their columns are taken."""
import json

import pytest

from ding_common import ConfigError
from dizoo_llm.tasks import create_task
from tests.dizoo_llm.helper import problems, write
from tests.dizoo_llm.rewards.test_functions import VERL, compute_score

pytestmark = pytest.mark.usefixtures('own_folder')
ROWS = [dict(question=f'{n} + 1?', answer=str(n + 1)) for n in range(6)]


def texts(task):
    return [(problem.text, problem.answer) for problem in problems(task)]


NESTED = dict(reward_model=dict(ground_truth='b'))
EXPECTED = [(row['question'], row['answer']) for row in ROWS]


@pytest.fixture
def datasets():
    return pytest.importorskip('datasets')


class TestSources:

    def test_files_a_pattern_and_a_list_of_rows(self, own_folder):
        write(own_folder / 'a1.jsonl', ROWS[:2])
        assert len(create_task(dict(type='file', path='a*'))) == 2
        (own_folder / 'a2.json').write_text(json.dumps(ROWS[2:4]))
        (own_folder / 'a3.csv').write_text('question,answer\n4 + 1?,5\n5 + 1?,6\n')
        for source in (['a1.jsonl', 'a2.json', 'a3.csv'], 'a*', ROWS):
            assert texts(create_task(dict(type='file', path=source))) == EXPECTED

    def test_a_place_in_one_of_several_files(self, own_folder):
        write(own_folder / 'a1.jsonl', ROWS)
        write(own_folder / 'a2.jsonl', [*ROWS[:1], dict(question='x')])
        with pytest.raises(ConfigError, match=r"env.task.path = 'a\*.jsonl': a2.jsonl: line 2 has no 'answer'"):
            create_task(dict(type='file', path='a*.jsonl'))

    def test_data_sets(self, datasets):
        data = datasets.Dataset.from_list(ROWS)
        data.save_to_disk('one')
        datasets.DatasetDict(train=data, test=data.select([0])).save_to_disk('two')
        for source in (data, 'one', 'two[train]'):
            assert texts(create_task(dict(type='file', path=source))) == EXPECTED
        task = create_task(dict(type='file', path='two[train]', eval_path='two[test]'))
        assert texts(task) == EXPECTED[1:] and texts(task.evaluation()) == EXPECTED[:1]

    def test_the_hub_is_asked_for_a_config_and_a_split(self, datasets, monkeypatch):
        asked = []

        def load_dataset(path, name):
            asked.append((path, name))
            return datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS))

        monkeypatch.setattr('datasets.load_dataset', load_dataset)
        assert texts(create_task(dict(type='file', path='openai/gsm8k:main[train]'))) == EXPECTED
        assert asked == [('openai/gsm8k', 'main')]

    @pytest.mark.parametrize(
        'source, message', [
            ('rows', "env.task.path = 'rows': must end in .jsonl, .json, .csv, .parquet or .py, be a folder of data"),
            (3, 'env.task.path = 3: must be a list of dicts, a path, or a datasets.Dataset'),
            (['a.jsonl', 'b.txt'], 'b.txt must end in .jsonl, '),
            ([], 'the task has no problem for training'),
            ('*.json', r"^env.task.path = '\*.json': there is no such file.$"),
            ('two', r"'two': must name one of its splits behind it in brackets: \[train\], \[test\]"),
            ('two[dev]', r"'two\[dev\]': must name one of its splits behind it in brackets: \[train\]"),
            ('one[train]', r"'one\[train\]': has no splits; remove \[train\]"),
            ('nobody/nothing:main[train]', r"main\[train\]': cannot be loaded from the hub or its cache"),
        ],
        ids=str
    )
    def test_wrong_sources(self, own_folder, datasets, monkeypatch, source, message):
        monkeypatch.setattr('datasets.config.HF_HUB_OFFLINE', True)
        write(own_folder / 'a.jsonl', ROWS)
        data = datasets.Dataset.from_list(ROWS)
        data.save_to_disk('one')
        datasets.DatasetDict(train=data, test=data).save_to_disk('two')
        with pytest.raises(ConfigError, match=message):
            create_task(dict(type='file', path=source))


class TestColumns:

    @pytest.mark.parametrize(
        'row, said', [
            (dict(prompt='a', question='x', solution='b'), "prompt 'prompt', answer 'solution'"),
            (dict(problem='a', **NESTED), "prompt 'problem', answer 'reward_model.ground_truth'"),
            (dict(messages=[dict(role='user', content='a')], answer='b'), "prompt 'messages', answer 'answer'"),
        ],
        ids=str
    )
    def test_what_is_taken_is_told_once(self, own_folder, capsys, row, said):
        path = write(own_folder / 'a.jsonl', [row])
        for _ in range(3):
            problem = create_task(dict(type='file', path=path)).problem(0)
            assert problem.text.removeprefix('user: ') == 'a' and problem.answer == 'b'
        assert capsys.readouterr().out == f'env.task.path = {path!r}: columns: {said}\n'

    def test_a_path_into_nested_columns(self):
        rows = [{'a': dict(q='x', b=dict(c='y')), 'd.e': 'z'}]
        problem = create_task(dict(type='file', path=rows, prompt='a.q', answer='a.b.c', kind='d.e')).problem(0)
        assert (problem.text, problem.answer, problem.metadata['kind']) == ('x', 'y', 'z')
        with pytest.raises(ConfigError, match=r"row 1 has no 'a.b.d' \(env.task.answer\); it has a, d.e."):
            create_task(dict(type='file', path=rows, prompt='a.q', answer='a.b.d'))

    @pytest.mark.parametrize(
        'row, message', [
            (dict(text='a', answer='b'), r'has no column for the prompt \(prompt, messages, question, problem\)'),
            (dict(question='a', label='b'), r'has no column for the answer \(answer, solution, ground_truth, rew'),
        ]
    )
    def test_none_is_found(self, row, message):
        with pytest.raises(ConfigError, match=message):
            create_task(dict(type='file', path=[row]))

    def test_without_an_answer_a_function_scores(self):
        task = create_task(dict(type='file', path=[dict(prompt='a')], reward=lambda completion: len(completion)))
        assert task.problem(0).answer == '' and not task.demonstrates
        assert task.checked_score(task.problem(0), 'abc') == dict(reward=3.0)

    def test_a_file_of_verl_and_its_function(self, own_folder):
        pa = pytest.importorskip('pyarrow')
        from pyarrow import parquet
        parquet.write_table(pa.Table.from_pylist(VERL), 'train.parquet')
        task = create_task(dict(type='file', path='train.parquet', reward=compute_score))
        assert [problem.answer for problem in problems(task)] == ['1', '2', '3']
        assert task.checked_scores(problems(task), ['1', 'x', '3']) == [dict(compute_score=x) for x in (1., 0., 1.)]
