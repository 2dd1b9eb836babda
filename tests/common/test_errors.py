import re

import pytest

from ding_common import TaskError, describe, unwrap_task_error


@pytest.mark.unittest
class TestUnwrap:

    def test_finds_the_task_error_in_a_managers_text(self):
        error = TaskError('two\nlines')
        text = f'Env 3 step has exceeded max retries(1), and the latest exception is: {error} (x)'
        with pytest.raises(TaskError) as caught:
            unwrap_task_error(RuntimeError(text))
        assert caught.value.message == 'two\nlines'

    def test_finds_the_innermost_as_a_worker_process_wraps_it(self):
        inner = TaskError("it's [odd]\n")
        outer = TaskError('\nEnv Process Exception:\n  File "x.py", line 1\n' + repr(inner))
        with pytest.raises(TaskError) as caught:
            unwrap_task_error(RuntimeError(f'Env 0 step has exceeded: {outer}'))
        assert caught.value.message == "it's [odd]\n"

    def test_leaves_other_errors_alone(self):
        error = RuntimeError('something else')
        with pytest.raises(RuntimeError) as caught:
            unwrap_task_error(error)
        assert caught.value is error

    def test_of_a_process_names_the_place_and_the_message(self):
        text = (
            '\nEnv Process Exception:\n  File "/a/manager.py", line 8, in step_fn\n    env.step(action)\n'
            '    ^^^^^^^^\n  File "/a/my_env.py", line 3, in step\n    x[9]\nIndexError(\'no ninth\')'
        )
        retried = 'Env 0 reset has exceeded max retries(1), and the latest exception is: '
        # the text of a KeyError is as Python writes it
        for error in (IndexError(text), RuntimeError(f'{retried}{text}'), RuntimeError(f'{retried}{KeyError(text)}')):
            with pytest.raises(TaskError) as caught:
                unwrap_task_error(error)
            assert re.fullmatch(
                r"an environment failed in step: IndexError\(.*no ninth.*\).* \(my_env.py:3\)", str(caught.value)
            )


@pytest.mark.unittest
def test_a_task_error_that_a_users_file_raises_has_no_marks():
    try:
        raise TaskError('no such kind')
    except TaskError as error:
        told = describe(error)
    assert told.startswith('TaskError: no such kind (test_errors.py:')
