"""A scorer that does not end fails its completion, and nothing else."""
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ding_common import TaskError
from dizoo_llm.base.time_limit import time_limit
from dizoo_llm.tasks import Problem, Reply, Task, Turn, create_task
from tests.dizoo_llm.helper import PROBLEMS, Prompts, problems, python_task
from tests.tasks import Game

FILE = PROBLEMS + '''
def {}:
    while {}:
        pass
    return {}
'''
TOLD = 'it took longer than 0.3 s'


def slowly(text, found):
    while text == 'slow':
        pass
    return found


class SlowGame(Game):
    seconds = 0.3

    def respond(self, problem, state, turn):
        return slowly(turn.text, Reply('b', dict(right=1.0)))


class TestTasks:

    def test_a_python_file(self, tmp_path):
        content = FILE.format('score(problem, completion)', "completion == 'slow'", '1.0')
        task = python_task(tmp_path, content, seconds=0.3)
        with pytest.raises(TaskError, match=rf'TimeoutError: {TOLD}, seconds of the task \(t.py:5\)'):
            task.checked_score(task.problem(0), 'slow')
        assert task.checked_score(task.problem(0), 'fast') == dict(score=1.0)
        # each part of a mixture has its own, also a longer one than that of the mixture would be
        part = dict(type='file', path=str(tmp_path / 't.py'))
        parts = [dict(part, seconds=None), dict(part, seconds=90.0)]
        assert create_task(dict(type='mixture', parts=parts)).seconds is None

    def test_a_batch_of_a_python_file(self, tmp_path):
        content = FILE.format('score_batch(problems, completions)', "'slow' in completions", '[1.0, 2.0]')
        task = python_task(tmp_path, content, seconds=0.1)
        slow = task.checked_scores(problems(task)[:2], ['slow', 'fast'])
        assert all('it took longer than 1 s, 10 times seconds of the task (t.py:5)' in error.message for error in slow)
        assert task.checked_scores(problems(task)[:2], ['a', 'b']) == [dict(score=1.0), dict(score=2.0)]

    def test_every_task_has_one(self):
        task = Prompts('a', scorer=lambda problem, text: slowly(text, dict(right=1.0)), seconds=0.3)
        first, second = task.checked_scores([Problem('a')] * 2, ['slow', 'fast'])
        assert TOLD in first.message and second == dict(right=1.0)
        with pytest.raises(TaskError, match=TOLD):
            SlowGame().checked_respond(Problem('a'), None, Turn('slow', 0, False))
        assert SlowGame().checked_respond(Problem('a'), None, Turn('fast', 0, False)).text == 'b'
        assert Task.seconds == create_task(dict(type='think_answer')).seconds == 60


class TestTimer:

    def test_code_that_catches_every_exception_and_tries_again(self):
        """Also what catches everything is interrupted, once a second."""
        begun, caught = time.monotonic(), 0
        with pytest.raises(TimeoutError, match='it took longer than 0.2 s'), time_limit(0.2):
            try:
                slowly('slow', None)
            except Exception:
                pass
        with pytest.raises(TimeoutError), time_limit(0.2):
            while time.monotonic() < begun + 60:
                try:
                    slowly('slow', None)
                except:  # noqa
                    caught += 1
                    if caught == 2:
                        raise
        assert caught == 2

    def test_a_limit_around_it_goes_on(self):
        """DI-engine's limit of a step has the same timer."""
        caught = []
        before = signal.signal(signal.SIGALRM, lambda *_: caught.append(1))
        try:
            signal.setitimer(signal.ITIMER_REAL, 1000)
            with time_limit(100):
                assert signal.getitimer(signal.ITIMER_REAL)[0] <= 100
            assert 100 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
            with time_limit(2000):  # ends later than that around it
                assert signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
                signal.raise_signal(signal.SIGALRM)
            assert caught == [1]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def test_nothing_is_left(self):
        before = signal.getsignal(signal.SIGALRM)
        with pytest.raises(TimeoutError), time_limit(0.2):
            time.sleep(1000)
        assert (signal.getitimer(signal.ITIMER_REAL)[0], signal.getsignal(signal.SIGALRM)) == (0, before)

    def test_in_a_thread_there_is_none(self):

        def work():
            with time_limit(0.001):
                return 1

        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(work).result() == 1
