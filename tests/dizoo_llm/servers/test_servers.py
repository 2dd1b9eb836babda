"""What ``Servers`` answer, whatever becomes of a server: of any program, without a scorer or a chat template."""
import os
import signal
import threading
import time

import pytest

from dizoo_llm import servers

PROGRAM = """
import os, time

def length(n):
    print(n)
    return len(bytearray(n))

def same(text):
    return text

def repeat(text, number):
    return text * number

def sleep(seconds):
    time.sleep(seconds)
    return os.getpid()

def compute(seconds):
    begun = time.process_time()
    while time.process_time() < begun + seconds:
        pass
    return seconds

def die(path):
    if os.path.exists(path):
        return 'second'
    open(path, 'w').close()
    os._exit(1)

def leave(n):
    os._exit(1)

def wrong(n):
    raise KeyError(n)
"""


@pytest.fixture
def own(tmp_path):
    """Makes servers of ``PROGRAM``, or of another one."""
    made = []

    def make(code=PROGRAM, **options):
        (tmp_path / 'own.py').write_text(code)
        made.append(servers.Servers('own', str(tmp_path / 'own'), 'not installed', **options))
        return made[-1]

    yield make
    for each in made:
        each.end()


def asked(own, *questions):
    return own.ask(questions, [question[1] for question in questions])


@pytest.mark.unittest
class TestServers:

    def test_what_is_printed_is_no_answer(self, own):
        assert asked(own(), ('length', 3), ('length', 4), ('length', 3)) == [3, 4, 3]

    @pytest.mark.parametrize('text', ['a\ud800\udc00b\ud800', '\n"\\\x00\u2028\x85', '中\U0001f600', ''])
    def test_texts_come_back_as_they_are(self, own, text):
        assert asked(own(), ('same', text)) == [text]

    def test_an_error_is_that_of_its_question_alone(self, own):
        servers_ = own()
        one, raised, other = asked(servers_, ('same', 1), ('wrong', 2), ('same', 3))
        assert (one, other) == (1, 3) and isinstance(raised, servers.Raised)
        assert raised.reason == 'KeyError: 2' and str(raised) == 'own raised KeyError: 2 for 2'
        assert len(servers_.running) == 1

    def test_a_question_that_kills_every_server_fails_alone(self, own):
        one, killed, other = asked(own(), ('same', 1), ('leave', 2), ('same', 3))
        assert (one, other) == (1, 3) and str(killed) == 'own exited while processing 2'

    @pytest.mark.parametrize('times, found', [(1, 'own exited while processing'), (2, 'second')])
    def test_how_often_a_question_is_asked_whose_server_dies(self, own, tmp_path, times, found):
        answer, = asked(own(times=times), ('die', str(tmp_path / 'mark')))
        assert str(answer).startswith(found)

    @pytest.mark.parametrize('most', [1, 8])
    def test_all_servers_together_have_a_limit_of_memory(self, own, most):
        share = servers.MEMORY // most
        fits, large = asked(own(most=most), ('length', share // 2), ('length', share))
        assert fits == share // 2 and 'MemoryError' in str(large)

    def test_there_are_no_more_than_allowed(self, own, monkeypatch):
        monkeypatch.setattr(servers, 'PATIENCE', 0.01)
        two = own(most=2)
        found = asked(two, *(('sleep', 0.3 + i / 1000) for i in range(8)))
        assert len(two.running) == len(set(found)) == 2

    def test_a_long_answer_is_refused_unless_the_question_is_long(self, own):
        """And is not read to its end."""
        most = servers.MOST_BYTES
        short, long = asked(own(), ('repeat', 'a', 100 * most), ('repeat', 'a' * most, 5))
        assert long == 'a' * 5 * most and 'own answers with more than 1,000,' in str(short)

    def test_a_server_that_is_stopped_is_not_late(self, own, monkeypatch):
        """It waits for a processor, as in a machine that is busy."""
        monkeypatch.setattr(servers, 'SECONDS', 0.2)
        one = own()
        assert asked(one, ('same', 1)) == [1]
        group, question = one.running[0].pid, ('same', 'x' * 1_000_000)  # more than the pipe takes
        os.killpg(group, signal.SIGSTOP)
        timer = threading.Timer(1.5, os.killpg, (group, signal.SIGCONT))
        timer.start()
        assert asked(one, question) == [question[1]] and one.running[0].pid == group
        timer.join()

    def test_one_that_computes_is_late(self, own, monkeypatch):
        monkeypatch.setattr(servers, 'SECONDS', 0.5)
        slept, late, again = asked(own(), ('sleep', 1), ('compute', 9), ('compute', 0.1))
        assert isinstance(slept, int) and again == 0.1
        assert isinstance(late, TimeoutError) and str(late) == 'own took more than 0.5 s for 9'

    def test_one_that_does_nothing_is_replaced(self, own, monkeypatch):
        monkeypatch.setattr(servers, 'WALL', 1.0)
        one = own()
        assert asked(one, ('same', 1)) == [1]
        os.killpg(one.running[0].pid, signal.SIGSTOP)
        question = ('same', 'x' * 1_000_000)  # as above
        assert asked(one, question) == [question[1]]
        sleeps, other = asked(one, ('sleep', 60), ('same', 3))
        assert isinstance(sleeps, TimeoutError) and str(sleeps) == 'own took more than 1 s for 60' and other == 3

    @pytest.mark.parametrize('code, error, message', [
        ('import no_such_module', ImportError, 'not installed'),
        ('1 / 0', RuntimeError, 'own exited while it was started'),
    ])  # yapf: disable
    def test_one_that_cannot_be_started(self, own, code, error, message):
        one = own(code)
        with pytest.raises(error, match=message):
            asked(one, ('same', 1))
        assert one.running == []

    def test_no_process_is_left(self, own, monkeypatch):
        monkeypatch.setattr(servers.sys, 'executable', '/no/such/python')
        one, before = own(), len(os.listdir('/dev/fd'))
        with pytest.raises(RuntimeError, match='own cannot be started .No such file'):
            asked(one, ('same', 1))
        assert one.running == [] and len(os.listdir('/dev/fd')) == before

    def test_a_fork_closes_the_pipes_of_the_parent(self, own):
        one, before = own(), set(os.listdir('/dev/fd'))
        assert asked(one, ('same', 1)) == [1]
        pipes = [int(number) for number in os.listdir('/dev/fd') if number not in before and _is_open(int(number))]
        assert len(pipes) == 2
        child = os.fork()
        if child == 0:
            try:
                os._exit(10 * len(one.running) + sum(map(_is_open, pipes)))
            finally:
                os._exit(99)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and all(map(_is_open, pipes))

    def test_the_folders_of_the_programs_hide_no_module(self, own, tmp_path):
        (tmp_path / 'string.py').write_text('1 / 0')
        path, = asked(own('import string, sys\ndef path(n): return sys.path'), ('path', 1))
        assert os.path.dirname(servers.__file__) not in path and str(tmp_path) not in path

    def test_what_waits_for_an_answer_sleeps(self, own):
        one = own()
        asked(one, ('same', 1))
        begun = time.process_time()
        asked(one, ('sleep', 1))
        assert time.process_time() - begun < 0.3


def _is_open(descriptor):
    try:
        return bool(os.fstat(descriptor))
    except OSError:
        return False
