"""A scorer that does not end fails its completion, and nothing else."""
import signal
import threading
import time

import pytest

from ding_common import ConfigError, TaskError
from dizoo_llm.base.time_limit import time_limit
from dizoo_llm.tasks import MultiTurnTask, Problem, Reply, Task, Turn, create_task

pytestmark = pytest.mark.unittest
FILE = '''
def problems():
    return [dict(prompt='a', answer='b')]

def {name}:
    while {hangs}:
        pass
    return {score}
'''


class Slow(Task):
    weights = dict(right=1.0)
    seconds = 0.3

    def __len__(self):
        return 1

    def problem(self, index):
        return Problem('a')

    def score(self, problem, completion):
        while completion == 'slow':
            pass
        return dict(right=1.0)


class SlowGame(MultiTurnTask):
    weights = dict(right=1.0)
    seconds = 0.3

    def __len__(self):
        return 1

    def problem(self, index):
        return Problem('a')

    def begin(self, problem, seed):
        return None

    def respond(self, problem, state, turn):
        while turn.text == 'slow':
            pass
        return Reply('b', dict(right=1.0))


class TestTasks:

    def test_a_python_file(self, tmp_path):
        path = tmp_path / 't.py'
        path.write_text(FILE.format(name='score(problem, completion)', hangs="completion == 'slow'", score='1.0'))
        task = create_task(dict(type='python', file=str(path), seconds=0.3))
        with pytest.raises(TaskError, match=r'TimeoutError: it took longer than 0.3 s, seconds of the task \(t.py:6\)'):
            task.checked_score(task.problem(0), 'slow')
        assert task.checked_score(task.problem(0), 'fast') == dict(score=1.0)

    def test_a_batch_of_a_python_file(self, tmp_path):
        path = tmp_path / 't.py'
        path.write_text(
            FILE.format(name='score_batch(problems, completions)', hangs="'slow' in completions", score='[1.0, 2.0]')
        )
        task = create_task(dict(type='python', file=str(path), seconds=0.1))
        slow = task.checked_scores([task.problem(0)] * 2, ['slow', 'fast'])
        assert all('it took longer than 1 s, 10 times seconds of the task (t.py:6)' in error.message for error in slow)
        assert task.checked_scores([task.problem(0)] * 2, ['a', 'b']) == [dict(score=1.0), dict(score=2.0)]

    def test_the_parts_of_a_mixture(self, tmp_path):
        """Each has its own, also a longer one than that of the mixture would be."""
        path = tmp_path / 't.py'
        path.write_text(FILE.format(name='score(problem, completion)', hangs='False', score='1.0'))
        part = dict(type='python', file=str(path))
        task = create_task(dict(type='mixture', parts=[dict(part, seconds=None), dict(part, seconds=90.0)]))
        assert task.seconds is None

    @pytest.mark.parametrize('seconds', [0, -1, float('nan'), 'x'])
    def test_a_limit_that_is_none(self, seconds):
        with pytest.raises(ConfigError, match=r'env.task.seconds = .*: must be a number'):
            create_task(dict(type='python', file='t.py', seconds=seconds))

    def test_every_task_has_one(self, tmp_path):
        first, second = Slow().checked_scores([Problem('a')] * 2, ['slow', 'fast'])
        assert 'it took longer than 0.3 s' in first.message and second == dict(right=1.0)
        assert Task.seconds == 60 and create_task(dict(type='think_answer')).seconds == 60

    def test_a_reply(self):
        task = SlowGame()
        with pytest.raises(TaskError, match='it took longer than 0.3 s'):
            task.checked_respond(Problem('a'), None, Turn('slow', 0, False))
        assert task.checked_respond(Problem('a'), None, Turn('fast', 0, False)).text == 'b'


class TestTimer:

    def test_code_that_catches_every_exception(self):

        def score():
            try:
                while True:
                    pass
            except Exception:
                return 0.0

        with pytest.raises(TimeoutError, match='it took longer than 0.2 s'), time_limit(0.2):
            score()

    def test_code_that_tries_again(self):
        """Also what catches everything is interrupted, once a second."""
        begun, caught = time.monotonic(), 0
        with pytest.raises(TimeoutError), time_limit(0.2):
            while time.monotonic() < begun + 60:
                try:
                    while True:
                        pass
                except:  # noqa
                    caught += 1
                    if caught == 2:
                        raise
        assert caught == 2 and time.monotonic() < begun + 30

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
        found = []

        def work():
            with time_limit(0.001):
                found.append(1)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert found == [1]
