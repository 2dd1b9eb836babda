"""What the README and the tutorial on tasks promise, done as they say."""
import os
import re
import subprocess
import sys
from typing import NamedTuple

import pytest

from ding_common import read_json_lines

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))
README = open(os.path.join(ROOT, 'README.md'), encoding='utf-8').read()


@pytest.mark.envtest
def test_own_task_in_20_lines_is_learned(tmp_path):
    task, changes = re.findall(r'```python\n(.*?)```', README, re.DOTALL)[:2]
    assert len(task.splitlines()) <= 20
    (tmp_path / 'my_task.py').write_text(task)
    config = open(os.path.join(ROOT, 'config', 'think_answer_grpo_config.py')).read()
    for line in changes.strip().splitlines():  # change in env
        key = line.split('=')[0].strip()
        config, found = re.subn(rf'^ *{key}=.*$', f'        {line.strip()}', config, count=1, flags=re.MULTILINE)
        assert found == 1, key
    (tmp_path / 'my_config.py').write_text(config)
    run = subprocess.run(
        [sys.executable, '-m', 'ding_grpo', *'-m serial_onpolicy -c my_config.py -s 0 --train-iter 150'.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300
    )
    assert run.returncode == 0, run.stderr
    folder = tmp_path / 'runs' / 'think_answer_grpo'
    last = read_json_lines(str(folder / 'log' / 'evaluator' / 'evaluations.jsonl'))[-1]
    assert last['eval_episode_return'] == 1 and len(last['completions']) == 7


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
