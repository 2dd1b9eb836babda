"""What the README and the tutorial on tasks promise, done as they say."""
import os
import re
from typing import NamedTuple

import pytest

from benchmarks import readme
from ding_common import read_json_lines
from tests.processes import ROOT, Process, run_ding

README = open(os.path.join(ROOT, 'README.md'), encoding='utf-8').read()


def learn(folder, module, source, config, changes, updates):
    """Train on a task of a user's module, with a copy of a config; gives the last evaluation."""
    (folder / f'{module}.py').write_text(source)
    text = open(os.path.join(ROOT, 'config', f'{config}_config.py')).read()
    for line in changes.strip().splitlines():
        key = line.split('=')[0].strip()
        text, found = re.subn(rf'^( *){key}=.*$', rf'\g<1>{line.strip()}', text, count=1, flags=re.MULTILINE)
        assert found == 1, key
    (folder / 'my_config.py').write_text(text)
    command = f'-m serial_onpolicy -c my_config.py -s 0 --train-iter {updates}'
    code, out = Process(run_ding, command, folder).end(300)
    assert code == 0, out
    return read_json_lines(str(folder / 'runs' / config / 'log' / 'evaluator' / 'evaluations.jsonl'))[-1]


def begun_or_learned(updates):
    """A few updates in every run of the tests; learned to the end among the long checks."""
    return pytest.mark.parametrize(
        'updates, found', [
            pytest.param(3, 0, marks=pytest.mark.envtest, id='begins'),
            pytest.param(updates, 1, marks=pytest.mark.algotest, id='is_learned'),
        ]
    )


@begun_or_learned(150)
def test_own_task_in_20_lines(tmp_path, updates, found):
    task, changes = re.findall(r'```python\n(.*?)```', README, re.DOTALL)[:2]
    assert len(task.splitlines()) <= 20
    last = learn(tmp_path, 'my_task', task, 'think_answer_grpo', changes, updates)
    assert last['eval_episode_return'] >= found and len(last['completions']) == 7


@begun_or_learned(200)
def test_own_game(tmp_path, updates, found):
    page = open(os.path.join(ROOT, 'docs', 'tutorials', 'own_game.md'), encoding='utf-8').read()
    game, changes = re.findall(r'```python\n(.*?)```', page, re.DOTALL)[:2]
    last = learn(tmp_path, 'my_game', game, 'guess_grpo', changes, updates)
    assert last['eval_episode_return'] >= found and len(last['completions']) == 5


@pytest.mark.unittest
def test_files_and_targets_that_the_readme_names_exist():
    for path in re.findall(r'\]\((?!http)([^)#]+)\)', README):
        assert os.path.exists(os.path.join(ROOT, path)), path
    makefile = open(os.path.join(ROOT, 'Makefile')).read()
    for target in re.findall(r'(?:`|^ {4})make ([a-z-]+)', README, re.MULTILINE):
        assert re.search(rf'^{target}:', makefile, re.MULTILINE), target


@pytest.mark.unittest
def test_python_file_as_a_task(tmp_path):
    from dizoo_llm.tasks import create_task
    page = open(os.path.join(ROOT, 'docs', 'tutorials', 'own_task.md'), encoding='utf-8').read()
    text = next(block for block in re.findall(r'```python\n(.*?)```', page, re.DOTALL) if 'def problems' in block)
    (tmp_path / 'my_task.py').write_text(text)
    task = create_task(dict(type='python', file=str(tmp_path / 'my_task.py'), eval_size=10))
    problem = task.problem(0)
    assert len(text.splitlines()) <= 20 and len(task) == 90
    assert task.checked_score(problem, f' {problem.answer}') == dict(right=1, short=1)


@pytest.mark.unittest
def test_a_task_that_scores_batches():
    from dizoo_llm.tasks import Problem, Task
    page = open(os.path.join(ROOT, 'docs', 'tutorials', 'own_task.md'), encoding='utf-8').read()
    method = next(block for block in re.findall(r'```python\n(.*?)```', page, re.DOTALL) if 'def score_batch' in block)
    names = dict(Task=Task, check_all=lambda pairs: [Checked(a == c, 'empty' * (c == '')) for a, c in pairs])
    exec(f"class Own(Task):\n    weights = dict(right=1.0)\n    __len__ = problem = None\n\n{method}", names)
    right, wrong, failed = names['Own']().checked_scores([Problem('a', 'b')] * 3, ['b', 'c', ''])
    assert right == dict(right=1) and wrong == dict(right=0) and 'raised RuntimeError: empty;' in failed.message


class Checked(NamedTuple):
    """What ``check_all`` of the tutorial returns for each completion."""
    passed: bool
    error: str


@pytest.mark.unittest
def test_figures_are_those_that_the_measuring_programs_have_written():
    pages = readme.pages()
    assert '| prompt 16, completion 256' in pages['README.md']
    for path, text in pages.items():
        assert open(os.path.join(ROOT, path), encoding='utf-8').read() == text, f'make bench NAME=readme: {path}'


@pytest.mark.unittest
def test_the_front_table_has_what_is_worse_too():

    def run(way, seed, right):
        trained = dict(right=right, gcd=0.02, letter_counting=0.23)
        return dict(way=way, seed=seed, curve=[(0, 0.1), (900, right), (901, 1.0)], trained=trained, seconds=1200.0)

    runs = [run('full', 0, 0.8), run('full', 1, 0.7), run('sft', 0, 0.95), run('kl', 0, 0.6)]
    words = '| 0 | 7.6 % | 84.2 % | 13.9 % | 98.0 % | 197 | 51 |\n| 1 | 11.9 % | 85.7 % | 15.0 % | 99.0 % | 198 | 48 |'
    start = dict(gcd=0.12, letter_counting=0.29)
    found = readme.learned(dict(start=start, runs=runs), words)
    for text in ('80.0 and 70.0 %', '95.0 %', '84.2 and 85.7 %', '98.0 and 99.0 %', 'warm start of 197 to 198 s',
                 '48 to 51 s', '12.0 % before, 2.0 and 2.0 % after', '29.0 % before, 23.0 and 23.0 % after',
                 '60.0 % of the sums'):
        assert text in found, text
    assert '100.0' not in found  # an evaluation after the 15 minutes
