"""What the tutorials on tasks promise, done as they say."""
import os
import re
from typing import NamedTuple

import pytest

from ding_common import read_json_lines
from dizoo_llm.tasks import Problem, Task, create_task
from tests.processes import Process, run_ding
from tests.project.documents import blocks_of, read

# Page, module, config, updates until it is learned, completions of an evaluation.
OWN = [
    ('own_task', 'my_task', 'think_answer_grpo', 150, 7),
    ('own_game', 'my_game', 'guess_grpo', 200, 5),
]


def python_of(page, words=''):
    return [block.text for block in blocks_of(page) if block.language == 'python' and words in block.text]


@pytest.mark.parametrize(
    'learned', [
        pytest.param(False, marks=pytest.mark.envtest, id='begins'),
        pytest.param(True, marks=pytest.mark.algotest, id='is_learned')
    ]
)
@pytest.mark.parametrize('page, module, config, updates, completions', OWN, ids=['task', 'game'])
def test_own_task(tmp_path, page, module, config, updates, completions, learned):
    """A block is the task, the next one the lines of the config that change."""
    blocks = python_of(os.path.join('docs', 'tutorials', f'{page}.md'))
    number = next(i for i, block in enumerate(blocks) if block.startswith('from dizoo_llm import TASK_REGISTRY'))
    task, changes = blocks[number:number + 2]
    assert page != 'own_task' or len(task.splitlines()) <= 20
    (tmp_path / f'{module}.py').write_text(task)
    text = read(os.path.join('config', f'{config}_config.py'))
    for line in changes.strip().splitlines():
        key = line.split('=')[0].strip()
        text, found = re.subn(rf'^( *){key}=.*$', rf'\g<1>{line.strip()}', text, count=1, flags=re.MULTILINE)
        assert found == 1, key
    (tmp_path / 'my_config.py').write_text(text)
    command = f'-m serial_onpolicy -c my_config.py -s 0 --train-iter {updates if learned else 1}'
    code, out = Process(run_ding, command, tmp_path).end(300)
    assert code == 0, out
    last = read_json_lines(str(tmp_path / 'runs' / config / 'log' / 'evaluator' / 'evaluations.jsonl'))[-1]
    assert last['eval_episode_return'] >= learned and len(last['completions']) == completions


def test_python_file_as_a_task(tmp_path):
    text = python_of('docs/tutorials/own_task.md', 'def problems')[0]
    (tmp_path / 'my_task.py').write_text(text)
    task = create_task(dict(type='file', path=str(tmp_path / 'my_task.py'), eval_size=10))
    problem = task.problem(0)
    assert len(text.splitlines()) <= 20 and len(task) == 90
    assert task.checked_score(problem, f' {problem.answer}') == dict(right=1, short=1)


class Checked(NamedTuple):
    """What ``check_all`` of the tutorial returns for each completion."""
    passed: bool
    error: str


def test_a_task_that_scores_batches():
    method = python_of('docs/tutorials/own_task.md', 'def score_batch')[0]
    names = dict(Task=Task, check_all=lambda pairs: [Checked(a == c, 'empty' * (c == '')) for a, c in pairs])
    exec(f"class Own(Task):\n    weights = dict(right=1.0)\n    __len__ = problem = None\n\n{method}", names)
    right, wrong, failed = names['Own']().checked_scores([Problem('a', 'b')] * 3, ['b', 'c', ''])
    assert right == dict(right=1) and wrong == dict(right=0) and 'raised RuntimeError: empty;' in failed.message
