"""Large data files: read once, shared by all environments, in little memory."""
import os
import tracemalloc

import pytest

from ding_common import ConfigError
from dizoo_llm.data import file
from dizoo_llm.rewards import CHECKS
from dizoo_llm.tasks import create_task
from tests.dizoo_llm.helper import environments, file_task, problems, questions, section, write


@pytest.fixture
def reads(monkeypatch):
    """Paths of the files that are read."""
    found, rows = [], file.read_rows
    monkeypatch.setattr(file, 'read_rows', lambda key, path: found.append(path) or rows(key, path))
    return found


@pytest.fixture
def checks(monkeypatch):
    """The answers that math-verify, in place of which is a comparison, has been asked about."""
    found, outcomes = [], dict(bad=0.0, late=TimeoutError('took more than 5 s'), died=RuntimeError('exited'))

    def check(pairs):
        found.extend(answer for _, answer in pairs)
        return [outcomes.get(given, 1.0) for given, _ in pairs]

    monkeypatch.setitem(CHECKS, 'math_verify', check)
    return found


def config(path, rows, **options):
    return dict(type='file', path=write(path, rows), **options)


class TestReading:

    def test_all_environments_read_a_file_once(self, tmp_path, reads):
        path, test = write(tmp_path / 'a.jsonl', questions(9)), write(tmp_path / 'b.jsonl', questions(2))
        collects, evaluates = environments(section(path, task=dict(eval_path=test)))
        assert sorted(reads) == [path, test]
        assert all(env.num_problems == 7 for env in collects) and all(env.num_problems == 2 for env in evaluates)

    def test_a_file_that_has_changed_is_read_again(self, tmp_path, reads):
        assert [len(file_task(tmp_path / 'a.jsonl', questions(n))) for n in (4, 5)] == [4, 5] and len(reads) == 2

    @pytest.mark.parametrize(
        'options, number', [(dict(seed=1), 1), (dict(template='{prompt}!'), 2), (dict(eval_size=4), 1)]
    )
    def test_other_texts_are_another_reading_and_another_division_is_not(self, tmp_path, reads, options, number):
        cfg = config(tmp_path / 'a.jsonl', questions(50), eval_size=9)
        tasks = [create_task(c).evaluation() for c in (cfg, dict(cfg, **options), cfg)]
        texts = [[problem.text for problem in problems(task)] for task in tasks]
        assert texts[0] == texts[2] != texts[1] and len(reads) == number

    def test_a_problem_is_each_environments_own(self, tmp_path):
        cfg = config(tmp_path / 'a.jsonl', questions(3))
        create_task(cfg).problem(0).metadata['solution'] = 'changed'
        assert create_task(cfg).problem(0).metadata == dict(solution='0')

    def test_memory_is_about_that_of_the_file(self, tmp_path):
        rows = [dict(question=f'{n} is the number of a question of usual length', answer=n) for n in range(1000)]
        cfg = config(tmp_path / 'a.jsonl', rows, eval_size=10)
        tracemalloc.start()
        try:
            task = create_task(cfg)
            size, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(task) == 990 and size < 2.5 * os.path.getsize(cfg['path'])  # as objects, about 7 times as much

    def test_math_verify_tries_a_sample_and_says_so(self, tmp_path, checks, capsys):
        rows = [dict(question=f'{n}?', answer=f'x{n}') for n in range(250)]
        cfg = config(tmp_path / 'a.jsonl', rows, check='math_verify')
        create_task(cfg)
        assert checks == [f'x{n * 250 // 100}' for n in range(100)]
        _, said = capsys.readouterr().out.splitlines()  # after the columns
        assert 'was tried on 100 of 250 reference answers' in said and 'check_rows=None' in said
        checks.clear()
        create_task(dict(cfg, check_rows=None))
        assert len(checks) == 250 and 'was tried' not in capsys.readouterr().out

    @pytest.mark.parametrize(
        'answer, told', [
            ('bad', "line 126: .*rejects the reference answer 'bad'"),
            ('late', "line 126: .*cannot read the reference answer 'late' .took more than 5 s"),
            ('died', "line 126: .*cannot read the reference answer 'died' .exited"),
        ]
    )
    def test_a_reference_of_the_sample_that_cannot_be_used_is_named(self, tmp_path, checks, answer, told):
        rows = [dict(question=f'{n}?', answer=answer if n == 125 else 'x') for n in range(250)]
        with pytest.raises(ConfigError, match=told):
            file_task(tmp_path / 'a.jsonl', rows, check='math_verify')

    def test_contradictions_are_a_sample_as_well(self, tmp_path, checks):
        rows = [dict(question='1?', answer=f'x{n}') for n in range(30)]
        file_task(tmp_path / 'a.jsonl', rows, check='math_verify', check_rows=5)
        assert len(checks) == 10

    @pytest.mark.parametrize('at', [0, (1 << 20) - 2, (1 << 20) - 1, 1 << 20])
    def test_a_wrong_byte_has_the_line_of_the_file(self, tmp_path, at):
        """The file is read in parts of 1 MiB."""
        lines = b'{"question": "1", "answer": "1"}\n' * (at // 33) + b' ' * (at % 33)
        for wrong, message in ((b'\xe9"', 'is not valid UTF-8'), (b'\xe2\x82"', 'is not valid UTF-8'), (b'\0', 'NUL')):
            with pytest.raises(ConfigError, match=f'line {at // 33 + 1} .*{message}'):
                file_task(tmp_path / 'a.jsonl', lines + wrong + b'\n{}')

    def test_a_letter_between_two_parts_is_read(self, tmp_path):
        content = ' ' * ((1 << 20) - 15) + '{"question": "€", "answer": "1"}'
        assert file_task(tmp_path / 'a.jsonl', content).problem(0).text == '€'
