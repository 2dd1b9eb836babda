"""What a hostile function costs: its call alone, and no process is left."""
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from dizoo_llm import servers
from tests.dizoo_llm.functions import HERE, call, said, tools


def alive(pid):
    try:
        return open(f'/proc/{pid}/stat').read().split()[2] != 'Z'
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.unittest
class TestHostile:

    @pytest.fixture(scope='class')
    def task(self):
        return tools(HERE + 'hostile', seconds=0.5, max_chars=50)

    @pytest.mark.parametrize(
        'what, told', [
            ('hang', 'error: hostile took more than 0.5 s'), ('deaf', 'error: hostile took more than 0.5 s'),
            ('children', 'error: hostile took more than 0.5 s'), ('end', 'error: hostile ended its process'),
            ('exit', 'error: SystemExit: leaving'), ('nothing', "error: KeyError: 'nothing'"), ('megabyte', 'y' * 50),
            ('special', '<eos><pad>'), ('surrogate', 'a?b'), ('print', 'done')
        ]
    )
    def test_costs_its_call_alone(self, task, what, told, capfd):
        start = time.monotonic()
        assert said(task, call('hostile', what=what)) == [told]
        assert time.monotonic() - start < 5
        assert said(task, call('hostile', what='print')) == ['done']
        assert capfd.readouterr() == ('', '')

    def test_what_a_call_started_ends_with_it(self, task):
        said(task, call('hostile', what='children'))
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try:
                with open(f'/proc/{pid}/cmdline') as f:
                    line = f.read()
            except (FileNotFoundError, ProcessLookupError):  # a process of another test, which has ended meanwhile
                continue
            assert '61.25' not in line

    def test_the_process_stays_until_it_has_to_be_ended(self, task):
        first, same = said(task, *[call('hostile', what='pid')] * 2)
        said(task, call('hostile', what='hang'))
        other, = said(task, call('hostile', what='pid'))
        assert first == same != other and int(first) != os.getpid() and not alive(first) and alive(other)

    def test_the_limit_is_that_of_the_task(self, monkeypatch):
        """Not that of a scorer."""
        monkeypatch.setattr(servers, 'SECONDS', 0.1)
        task = tools(HERE + 'busy', seconds=30)
        assert said(task, call('busy', seconds=0.5)) == ['0.5']

    def test_the_limit_is_not_that_of_the_pause_after_a_call(self, monkeypatch):
        task = tools(HERE + 'hostile', seconds=0.2)
        first, = said(task, call('hostile', what='pid'))
        time.sleep(1.5)
        assert said(task, call('hostile', what='pid')) == [first]

    def test_a_call_that_ends_its_process_is_not_repeated(self, tmp_path):
        """It may have had an effect."""
        task = tools(HERE + 'leave')
        assert said(task, call('leave', path=str(tmp_path / 'a'))) == ['error: leave ended its process']
        assert (tmp_path / 'a').read_text() == 'once'

    def test_an_answer_of_many_bytes(self):
        """A character may have twelve in JSON."""
        task = tools(HERE + 'wide', max_chars=1_000_000)
        assert said(task, call('wide', number=2_000_000)) == ['\0' * 1_000_000]

    def test_a_fork_while_a_thread_calls(self):
        """The thread that holds the lock does not exist in the fork."""
        task = tools(HERE + 'slow', seconds=30)
        assert said(task, call('slow', seconds=0.)) == ['0.0']
        thread = threading.Thread(target=said, args=(task, call('slow', seconds=1.)))
        thread.start()
        time.sleep(0.3)  # it waits for its answer
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            try:
                os._exit(said(task, call('slow', seconds=0.)) != ['0.0'])
            finally:
                os._exit(2)
        thread.join()
        assert os.waitpid(child, 0)[1] == 0

    def test_a_process_that_was_inherited_is_not_used(self, task):
        first, = said(task, call('hostile', what='pid'))
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, said(task, call('hostile', what='pid'))[0].encode())
            os._exit(0)
        os.waitpid(child, 0)
        other = os.read(read, 99).decode()
        os.close(read), os.close(write)
        assert first != other and said(task, call('hostile', what='pid')) == [first]

    @pytest.mark.parametrize('end', ['', 'os.kill(os.getpid(), 9)', 'threading.Thread(target=kill).start(); hang()'])
    def test_nothing_is_left_when_the_program_ends(self, end):
        code = (
            'import os, threading, time\n'
            'from dizoo_llm.servers.tool_process import ToolProcess\n'
            'def sleep(): time.sleep(99)\n'
            'process = ToolProcess([os.getpid, sleep], 1.0, 99)\n'
            'def kill(): time.sleep(.3); os.kill(os.getpid(), 9)\n'
            'def hang(): process.call("sleep", {})\n'
            'print(process.call("getpid", {}).text, flush=True)\n' + end
        )
        out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout
        until = time.monotonic() + 10
        while alive(out.strip()) and time.monotonic() < until:
            time.sleep(0.05)
        assert out.strip().isdigit() and not alive(out.strip())
