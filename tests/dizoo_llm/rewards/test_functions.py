"""Reward functions in the forms that people have: this project's, TRL's, verl's."""
import asyncio

import numpy as np
import pytest
import torch

from ding_common import ConfigError
from dizoo_llm.tasks import create_task
from tests.dizoo_llm.helper import problems

ROWS = [dict(question=f'{n} + 1?', answer=str(n + 1), level=n) for n in range(3)]
CHATS = [
    dict(prompt=[dict(role='user', content=f'{n} + 1?')], ground_truth=str(n + 1), level=n, prompts_of='x')
    for n in range(3)
]
# Rows of verl's files: what its programs for GSM8K write.
VERL = [
    dict(
        data_source='openai/gsm8k',
        prompt=[dict(role='user', content=f'{n} + 1?')],
        ability='math',
        reward_model=dict(style='rule', ground_truth=str(n + 1)),
        extra_info=dict(split='train', index=n)
    ) for n in range(3)
]


# ---- this project's
def one(problem, completion):
    return float(completion == problem['answer'])


# ---- TRL's, as its documentation has them
def texts(prompts, completions, **kwargs):
    return [float(f'{int(p[0]) + 1}' == c) for p, c in zip(prompts, completions)]


def messages(completions, ground_truth, **kwargs):
    contents = [completion[0]['content'] for completion in completions]
    return [1.0 if c == g else 0.0 for c, g in zip(contents, ground_truth)]


def last_message(prompts, completions, ground_truth, level, **kwargs):
    assert all(prompt[-1]['role'] == 'user' and prompt[-1]['content'].endswith('?') for prompt in prompts)
    assert all(completion[0]['role'] == 'assistant' for completion in completions)
    return torch.tensor([float(c[0]['content'] == g) for c, g in zip(completions, ground_truth)])


def only_some(completions, ground_truth, level, **kwargs):
    """None: does not apply."""
    return [None if n == 2 else float(c[0]['content'] == g) for c, g, n in zip(completions, ground_truth, level)]


async def asynchronous(completions, ground_truth, **kwargs):
    await asyncio.sleep(0)
    return [float(c[0]['content'] == g) for c, g in zip(completions, ground_truth)]


class Judge:
    """An object, of which TRL takes the name from its attribute."""
    __name__ = 'judge'

    async def __call__(self, prompts, completions, **kwargs):
        return [float(c[0]['content'] == g) for c, g in zip(completions, kwargs['ground_truth'])]


# ---- verl's
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == 'openai/gsm8k' and extra_info['split'] == 'train'
    return 1.0 if solution_str == ground_truth else 0.0


def compute_dict(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return dict(score=np.float64(solution_str == ground_truth), acc=True)


def compute_less(solution_str, ground_truth):
    return solution_str == ground_truth


@pytest.mark.parametrize(
    'rows, function',
    [
        *((ROWS, f) for f in (one, texts)),
        *((CHATS, f) for f in (messages, last_message, asynchronous, Judge())),
        *((VERL, f) for f in (compute_score, compute_dict, compute_less)),
    ],
    ids=lambda value: '' if isinstance(value, list) else getattr(value, '__name__', '')
)  # yapf: disable
def test_a_function_scores_as_where_it_comes_from(rows, function):
    task = create_task(dict(type='file', path=rows, reward=function))
    name = function.__name__
    asked = problems(task)
    assert task.weights == {name: 1.0}
    assert task.checked_scores(asked, ['1', '7', '3']) == [{name: 1.0}, {name: 0.0}, {name: 1.0}]
    assert task.checked_score(asked[1], '2') == {name: 1.0}


def test_none_does_not_apply():
    task = create_task(dict(type='file', path=CHATS, reward=only_some))
    assert task.checked_scores(problems(task), ['1', '2', '3']) == [dict(only_some=x) for x in (1.0, 1.0, None)]


def test_several_with_the_answer_of_the_data_and_names():
    task = create_task(dict(type='file', path=ROWS, answer_in='boxed', reward=['number', texts, one]))
    assert task.weights == dict(right=1.0, texts=1.0, one=1.0) and task.return_part == 'right' and task.scores_batches
    assert task.checked_score(task.problem(0), '\\boxed{1}') == dict(right=1.0, texts=0.0, one=0.0)
    named = dict(correct='exact', form='tags', short=lambda completion: len(completion) < 3)
    task = create_task(dict(type='file', path=ROWS, reward=named))
    assert list(task.weights) == ['correct', 'form', 'short'] and task.return_part == 'correct'
    assert task.checked_score(task.problem(0), '1') == dict(correct=1.0, form=0.0, short=1.0)


@pytest.mark.parametrize(
    'reward, batches', [(None, False), ('number', False), (one, False), (['number', one], False), (texts, True)]
)
def test_only_functions_of_batches_are_scored_in_batches(reward, batches):
    task = create_task(dict(type='file', path=ROWS, reward=reward, eval_size=1))
    assert task.scores_batches == task.evaluation().scores_batches == batches


def test_by_name_from_a_file_that_runs_once(tmp_path, own_folder):
    (tmp_path / 'mine.py').write_text(
        "open('ran', 'a').write('x')\n\n\ndef correct(completion, answer):\n    return completion == answer\n"
    )
    config = dict(type='file', path=ROWS, reward='mine.py:correct')
    for _ in range(3):
        task = create_task(config)
        assert task.checked_score(task.problem(0), '1') == dict(correct=1.0)
    assert (tmp_path / 'ran').read_text() == 'x'
    module = f'{__name__}:one'
    assert create_task(dict(config, reward=module)).weights == dict(one=1.0)


@pytest.mark.parametrize('value', ['0.5', [1.0], dict(score=1)], ids=str)
def test_what_is_no_number_is_told_with_function_row_and_value(value):
    task = create_task(dict(type='file', path=ROWS, reward=dict(f=lambda completion: value)))
    error, = task.checked_scores([task.problem(1)], ['a'])
    assert f"scored f = {value!r}, must be a finite" in error.message
    assert "problem: '1 + 1?'; completion: 'a'" in error.message


@pytest.mark.parametrize('value', [1, True, np.int8(1), np.float32(1), np.array(1.0), torch.tensor(1), torch.ones(())])
def test_any_kind_of_real_number(value):
    task = create_task(dict(type='file', path=ROWS, reward=dict(f=lambda completion: value)))
    found = task.checked_score(task.problem(0), 'a')
    assert found == dict(f=1.0) and type(found['f']) is float


def raises(completion):
    raise KeyError('x')


def test_an_error_of_one_of_several():
    task = create_task(dict(type='file', path=ROWS, reward=[one, raises]))
    assert all("KeyError: 'x'" in error.message for error in task.checked_scores(problems(task), ['a'] * 3))


@pytest.mark.parametrize(
    'reward, message', [
        (3, "env.task.reward = 3: must be a function, 'module:function', 'file.py:function', or one of 'exact', "),
        ('numbr', "env.task.reward = 'numbr': must be a function, "),
        ('nowhere:f', "env.task.reward = 'nowhere:f': there is no module 'nowhere' that can be imported."),
        ('none.py:f', "env.task.reward = 'none.py': there is no such file."),
        (['exact', 'number'], 'must have at most one of '),
        ([one, one], "the name 'one' occurs twice. Give names: dict(name=function, ...)."),
        ([], 'env.task.reward = []: must have a function.'),
        (lambda completion, reference: 1, "nothing is known to give to 'reference'"),
        (lambda prompts, completions, completion_ids: 1, "nothing is known to give to 'completion_ids'"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__
)  # yapf: disable
def test_a_wrong_reward_ends_in_one_line(reward, message, own_folder):
    with pytest.raises(ConfigError) as error:
        create_task(dict(type='file', path=ROWS, reward=reward))
    assert message in error.value.message and '\n' not in error.value.message


def test_the_functions_of_a_file_are_named(tmp_path):
    (tmp_path / 'mine.py').write_text('def correct(completion):\n    return 1\n')
    with pytest.raises(ConfigError, match="the file has no function 'corect'; did you mean 'correct'?"):
        create_task(dict(type='file', path=ROWS, reward=f'{tmp_path}/mine.py:corect'))
