"""What of a run's config is code."""
import pytest

from ding_common import code_of


@pytest.mark.unittest
@pytest.mark.parametrize(
    'task, code', [
        (dict(type='file', path='a.jsonl', template='Question:answer', prompt='a:b', at='12:30'), []),
        (dict(type='file', path='C:/data/a.jsonl'), []),
        (dict(type='file', score='my.module:score'), ["env.task.score = 'my.module:score'"]),
        (dict(type='python', file='rewards'), ["env.task.file = 'rewards'"]),
        (dict(type='mine', parts=[dict(source='a/b.py')]), ["env.task.parts.source = 'a/b.py'"]),
        (dict(type='mine', import_names=['ding_grpo.envs', 'mine']), ["env.task.import_names = 'mine'"]),
    ]
)
def test_what_a_run_imports_or_executes(task, code):
    assert code_of(dict(env=dict(task=task))) == code
