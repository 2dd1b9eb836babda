import pytest

from ding_common import TaskError, describe, unwrap_task_error

ODD = TaskError("it's [odd]\n")
# What DI-engine's managers make of an error in an environment.
STEP = 'Env 3 step has exceeded max retries(1), and the latest exception is: '
PROCESS = (
    '\nEnv Process Exception:\n  File "/a/manager.py", line 8, in step_fn\n    env.step(action)\n'
    '    ^^^^^^^^\n  File "/a/my_env.py", line 3, in step\n    x[9]\nIndexError(\'no ninth\')'
)
PLACE = r'^an environment failed in step: IndexError\(.*no ninth.*\).* \(my_env.py:3\)$'


@pytest.mark.parametrize(
    'error, message',
    [
        (RuntimeError(f'{STEP}{TaskError("two lines")} (x)'), '^two lines$'),
        (RuntimeError(f'{STEP}{TaskError(PROCESS + repr(ODD))}'), r"^it's \[odd\]\n$"),  # the innermost
        (IndexError(PROCESS), PLACE),
        (RuntimeError(f'{STEP}{PROCESS}'), PLACE),
        (RuntimeError(f'{STEP}{KeyError(PROCESS)}'), PLACE),  # whose text is as Python writes it
    ]
)
def test_the_error_of_a_task_or_an_environment_is_found_in_a_managers_text(error, message):
    with pytest.raises(TaskError, match=message):
        unwrap_task_error(error)


def test_other_errors_are_left_alone():
    error = RuntimeError('something else')
    with pytest.raises(RuntimeError) as caught:
        unwrap_task_error(error)
    assert caught.value is error


def test_a_task_error_that_a_users_file_raises_has_no_marks():
    try:
        raise TaskError('no such kind')
    except TaskError as error:
        told = describe(error)
    assert told.startswith('TaskError: no such kind (test_errors.py:')
