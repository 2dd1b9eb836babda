import pytest

from ding_common import TaskError, unwrap_task_error


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
