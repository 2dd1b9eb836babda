"""Scores of ``math_verify`` are those of one process, whoever asks and whatever becomes of its server."""
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from dizoo_llm import servers
from dizoo_llm.rewards.answers import SERVERS, math_verify

pytest.importorskip('math_verify')
QUESTIONS = [('1/2', '0.5', 1.), ('3', '4', 0.), (r'\frac{2}{4}', '0.5', 1.), ('x+2', '2+x', 1.), ('x+2', '3+x', 0.)]
# A process that asks a question without end, and prints its server's pid once it does.
ASKS = """
import threading, time
from dizoo_llm import servers
from dizoo_llm.rewards import answers
from dizoo_llm.rewards.answers import SERVERS
answers.math_verify([('1', '1')])
servers.SECONDS = 2.0
print(SERVERS.running[0].pid, flush=True)
{question}
time.sleep(1000)
"""


def ask(first, number=20):
    """Whether each score is right; the order of the questions differs from caller to caller."""
    asked = [QUESTIONS[(first + i) % len(QUESTIONS)] for i in range(number)]
    return [math_verify([(given, answer)]) == [score] for given, answer, score in asked]


def in_forks(number, what, *args):
    with multiprocessing.get_context('fork').Pool(number) as pool:
        return pool.starmap(what, [(i, *args) for i in range(number)], chunksize=1)


def ends(pid):
    """Whether a process ends in a minute; its parent, which may be the first process of a container, need not care."""
    for _ in range(600):
        try:
            with open(f'/proc/{pid}/stat') as f:
                if f.read().rpartition(')')[2].split()[0] == 'Z':
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.unittest
class TestMathServer:

    def test_forks_get_their_own_answers(self):
        assert math_verify([('1', '1')]) == [1]  # so that there is a server before the forks
        assert in_forks(3, ask) == [[True] * 20] * 3
        assert ask(0) == [True] * 20

    def test_a_fork_while_a_thread_asks(self):
        """The thread that holds the lock does not exist in the fork."""
        assert math_verify([('1', '1')]) == [1]
        thread = threading.Thread(target=ask, args=(0, 200))
        thread.start()
        try:
            assert in_forks(2, ask, 5) == [[True] * 5] * 2
        finally:
            thread.join()

    def test_answers_do_not_wait_for_those_that_take_for_ever(self, monkeypatch):
        """Six end at the limit, each asked twice; the others are answered by a server that is started meanwhile."""
        monkeypatch.setattr(servers, 'SECONDS', 3.0)
        SERVERS.end()
        slow = [(f'{n}^{{9^{{9^{{9}}}}}}', '4') for n in range(2, 8)]
        found = math_verify([*slow, ('1/2', '0.5'), *slow, ('3', '4'), ('a word', '4')])
        assert [type(score) for score in found] == [TimeoutError] * 6 + [float] + [TimeoutError] * 6 + [float] * 2
        assert [found[i] for i in (6, 13, 14)] == [1., 0., 0.]
        assert found[0] is found[7] and 'math-verify took more than 3 s for' in str(found[0])
        assert 1 < len(SERVERS.running) <= servers.MOST and ask(0) == [True] * 20

    def test_a_module_in_the_current_folder_is_not_imported(self, tmp_path, monkeypatch):
        (tmp_path / 'math_verify.py').write_text(f"open({str(tmp_path / 'mark')!r}, 'w')")
        monkeypatch.chdir(tmp_path)
        SERVERS.end()
        assert ask(0, 3) == [True] * 3 and not (tmp_path / 'mark').exists()

    def test_an_answer_after_an_interrupt_is_not_that_of_the_next_question(self):
        """DI-engine ends a step that takes too long by a signal, whose handler raises."""

        def interrupt(*_):
            raise TimeoutError('of the step')

        assert math_verify([('1', '1')]) == [1]
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(TimeoutError, match='of the step'):
                math_verify([('9^{9^{9^{9}}}', '4')])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert ask(0) == [True] * 20

    @pytest.mark.skipif(not os.path.exists('/proc'), reason='reads /proc')
    @pytest.mark.parametrize('question', ['', "answers.math_verify([('9^{9^{9^{9}}}', '4')])"])
    def test_a_server_ends_with_a_process_that_is_killed(self, question):
        process = subprocess.Popen(
            [sys.executable, '-c', ASKS.format(question=question)], stdout=subprocess.PIPE, text=True
        )
        pid = int(process.stdout.readline())
        time.sleep(0.5)  # for the question; the claim holds whether or not it was asked
        process.kill()
        process.wait()
        process.stdout.close()
        assert ends(pid)

    @pytest.mark.skipif(not os.path.exists('/proc'), reason='reads /proc')
    def test_a_fork_does_not_keep_the_server_of_a_dead_process(self):
        """A fork that outlives its parent holds no end of the pipe."""
        question = "import os\nif os.fork() == 0:\n    time.sleep(1000)\nprint('forked', flush=True)"
        asks = ASKS.format(question=question).replace('print(SERV', 'import os; print(os.getpid(), SERV')
        process = subprocess.Popen(
            [sys.executable, '-c', asks], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        own, pid = map(int, process.stdout.readline().split())
        try:
            assert process.stdout.readline() == 'forked\n'
            process.kill()
            process.wait()
            assert ends(pid)
        finally:
            os.killpg(own, signal.SIGKILL)  # the fork
            process.stdout.close()
