"""What ``Servers`` answer, whatever becomes of a server: of any program, without a scorer or a chat template."""
import os
import signal
import threading

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
LONG = ('same', 'x' * 1_000_000)  # more than a pipe takes


class Own(servers.Servers):

    def __call__(self, *questions):
        return self.ask(questions, [question[1] for question in questions])


def no_python(read, write):
    return os.posix_spawn('/no/such/python', ['python'], {})


@pytest.fixture
def own(tmp_path):
    """Makes servers of ``PROGRAM``, or of another one."""
    made = []

    def make(code=PROGRAM, start=str(tmp_path / 'own'), **options):
        (tmp_path / 'own.py').write_text(code)
        made.append(Own('own', start, 'not installed', **options))
        return made[-1]

    yield make
    for each in made:
        each.end()


class TestServers:

    def test_answers_come_back_as_they_are(self, own):
        """What is printed is no answer."""
        ask = own()
        assert ask(('length', 3), ('length', 4), ('length', 3)) == [3, 4, 3]
        texts = ['a\ud800\udc00b\ud800', '\n"\\\x00\u2028\x85', '中\U0001f600', '']
        assert ask(*(('same', text) for text in texts)) == texts

    def test_a_question_fails_alone(self, own):
        ask = own()
        one, raised, other = ask(('same', 1), ('wrong', 2), ('same', 3))
        assert (one, other, len(ask.running)) == (1, 3, 1) and isinstance(raised, servers.Raised)
        assert raised.reason == 'KeyError: 2' and str(raised) == 'own raised KeyError: 2 for 2'
        one, killed, other = ask(('same', 1), ('leave', 2), ('same', 3))
        assert (one, other) == (1, 3) and str(killed) == 'own exited while processing 2'

    @pytest.mark.parametrize('times, found', [(1, 'own exited while processing'), (2, 'second')])
    def test_how_often_a_question_is_asked_whose_server_dies(self, own, tmp_path, times, found):
        answer, = own(times=times)(('die', str(tmp_path / 'mark')))
        assert str(answer).startswith(found)

    def test_all_servers_together_have_a_limit_of_memory(self, own):
        share = servers.MEMORY // 8
        fits, large = own(most=8, seconds=60)(('length', share // 2), ('length', share))
        assert fits == share // 2 and 'MemoryError' in str(large)

    def test_a_long_answer_is_refused_unless_the_question_is_long(self, own):
        """And is not read to its end."""
        most = servers.MOST_BYTES
        short, long = own()(('repeat', 'a', 100 * most), ('repeat', 'a' * most, 5))
        assert long == 'a' * 5 * most and 'own answers with more than 1,000,' in str(short)

    def test_a_server_that_is_stopped_is_not_late(self, own):
        """It waits for a processor, as in a machine that is busy."""
        ask = own(seconds=0.2)
        assert ask(('same', 1)) == [1]
        group = ask.running[0].pid
        os.killpg(group, signal.SIGSTOP)
        timer = threading.Timer(1.5, os.killpg, (group, signal.SIGCONT))
        timer.start()
        assert ask(LONG) == [LONG[1]] and ask.running[0].pid == group
        timer.join()

    def test_one_that_computes_is_late(self, own):
        slept, late, again = own(seconds=0.5)(('sleep', 1), ('compute', 9), ('compute', 0.1))
        assert isinstance(slept, int) and again == 0.1
        assert isinstance(late, TimeoutError) and str(late) == 'own took more than 0.5 s for 9'

    def test_one_that_does_nothing_is_replaced(self, own):
        ask = own(wall=1.0)
        assert ask(('same', 1)) == [1]
        os.killpg(ask.running[0].pid, signal.SIGSTOP)
        assert ask(LONG) == [LONG[1]]
        sleeps, other = ask(('sleep', 60), ('same', 3))
        assert isinstance(sleeps, TimeoutError) and str(sleeps) == 'own took more than 1 s for 60' and other == 3

    @pytest.mark.parametrize(
        'options, error, message', [
            (dict(code='import no_such_module'), ImportError, 'not installed'),
            (dict(code='1 / 0'), RuntimeError, 'own exited while it was started'),
            (dict(start=no_python), RuntimeError, 'own cannot be started .No such file'),
        ]
    )
    def test_one_that_cannot_be_started_leaves_nothing(self, own, options, error, message):
        ask, before = own(**options), len(os.listdir('/dev/fd'))
        with pytest.raises(error, match=message):
            ask(('same', 1))
        assert ask.running == [] and len(os.listdir('/dev/fd')) == before

    def test_no_folder_hides_a_module(self, own, tmp_path, monkeypatch):
        """Neither that of the programs nor the current one."""
        (tmp_path / 'string.py').write_text('1 / 0')
        monkeypatch.chdir(tmp_path)
        path, = own('import string, sys\ndef path(n): return sys.path')(('path', 1))
        assert not {os.path.dirname(servers.__file__), str(tmp_path), ''} & set(path)
