"""What a hostile function costs: its call alone, and no process is left."""
import os
import signal
import time

import pytest

from tests.dizoo_llm.functions import HERE, call, said, tools
from tests.processes import Process, run_code

# Programs that print the id of another process, and then do more.
TOOLS = """
import os, threading, time
from dizoo_llm.servers.tool_process import ToolProcess
def sleep(): time.sleep(99)
process = ToolProcess([os.getpid, sleep], 1.0, 99)
print(process.call('getpid', {{}}).text, flush=True)
def kill(): time.sleep(.3); os.kill(os.getpid(), 9)
{}
"""
ASKS = """
import os, time
from dizoo_llm.rewards.answers import SERVERS, math_verify
math_verify([('1', '1')])
SERVERS.seconds = 2.0
print(SERVERS.running[0].pid, flush=True)
{}
time.sleep(1000)
"""
KILLED = 'os.kill(os.getpid(), 9)'


def alive(pid):
    try:
        return open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[0] != 'Z'
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(scope='module')
def task():
    return tools(HERE + 'hostile', seconds=0.5, max_chars=50)


def test_the_process_ends_a_call_a_second_after_the_limit_of_the_task():
    told, = said(tools(HERE + 'left', seconds=30.0), call('left'))
    assert 25 < float(told) <= 31


class TestHostile:

    @pytest.mark.parametrize(
        'what, told', [
            ('hang', 'error: hostile took more than 0.5 s'), ('deaf', 'error: hostile took more than 0.5 s'),
            ('children', 'error: hostile took more than 0.5 s'), ('end', 'error: hostile ended its process'),
            ('exit', 'error: SystemExit: leaving'), ('nothing', "error: KeyError: 'nothing'"), ('megabyte', 'y' * 50),
            ('special', '<eos><pad>'), ('surrogate', 'a?b'), ('print', 'done')
        ]
    )
    def test_costs_its_call_alone_and_what_it_started(self, task, what, told, capfd):
        assert said(task, call('hostile', what=what), call('hostile', what='print')) == [told, 'done']
        assert capfd.readouterr() == ('', '')
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try:
                with open(f'/proc/{pid}/cmdline') as f:
                    line = f.read()
            except (FileNotFoundError, ProcessLookupError):  # a process of another test, which has ended meanwhile
                continue
            assert '61.25' not in line

    def test_the_process_stays_until_it_has_to_be_ended(self, task):
        pid, hang = call('hostile', what='pid'), call('hostile', what='hang')
        first, same, _, other = said(task, pid, pid, hang, pid)
        assert first == same != other and int(first) != os.getpid() and not alive(first) and alive(other)
        time.sleep(1.5)  # the limit is not that of the pause after a call
        assert said(task, pid) == [other]

    def test_a_call_that_ends_its_process_is_not_repeated(self, tmp_path):
        """It may have had an effect."""
        text = call('leave', path=str(tmp_path / 'a'))
        assert said(tools(HERE + 'leave'), text) == ['error: leave ended its process']
        assert (tmp_path / 'a').read_text() == 'once'

    def test_an_answer_of_many_bytes(self):
        """A character may have twelve in JSON."""
        task = tools(HERE + 'wide', max_chars=1_000_000)
        assert said(task, call('wide', number=2_000_000)) == ['\0' * 1_000_000]


@pytest.mark.skipif(not os.path.exists('/proc'), reason='reads /proc')
@pytest.mark.parametrize(
    'program, more',
    [
        (TOOLS, ''),
        (TOOLS, KILLED),
        (TOOLS, 'threading.Thread(target=kill).start(); process.call("sleep", {})'),
        (ASKS, KILLED),
        (ASKS, 'import threading\nthreading.Timer(1, lambda: os.kill(os.getpid(), 9)).start()\n'
         "math_verify([('9^{9^{9^{9}}}', '4')])"),
        (ASKS, f'if os.fork(): {KILLED}'),  # a fork that outlives its parent holds no end of the pipe
    ]
)  # yapf: disable
def test_nothing_is_left_when_the_program_ends(tmp_path, program, more):
    if program is ASKS:
        pytest.importorskip('math_verify')
    process = Process(run_code, program.format(more), tmp_path)
    try:
        other, = process.end()[1].split()
        until = time.monotonic() + 60
        while alive(other) and time.monotonic() < until:
            time.sleep(0.05)
        assert other.isdigit() and not alive(other)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # the fork
        except ProcessLookupError:
            pass
