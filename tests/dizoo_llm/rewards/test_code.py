"""The reward of a program: how it is found, the forms of its tests, and what hostile programs get."""
import json
import os
import platform
import re
import socket
import subprocess
import time
from functools import lru_cache

import pytest

from ding_common import ConfigError, TaskError
from dizoo_llm.rewards.code import block_of, tests_of as parsed
from dizoo_llm.servers.sandbox import Sandbox, why_not_isolated
from dizoo_llm.tasks import create_task
from tests.cases import brief
from tests.dizoo_llm.helper import PROBLEMS, few_files, python_task
from tests.processes import Process, run_code

DOUBLE = 'def double(n):\n    return 2 * n\n'
ASSERTS = ['assert double(1) == 2', 'assert double(0) == 0', 'assert double(-3) == -6', 'assert double("a") == "aa"']
PAIRS = [['1', '2'], ['10', '20\n']]
KINDS = [True, False] if why_not_isolated() is None else [False]


def box_of(request):
    """Without namespaces, root drops its user, who must be able to read Python's own files."""
    made = Sandbox(isolated=request.param)
    if not made.isolated and not runs_without_namespaces():
        pytest.skip("another user cannot read Python's own files")
    return made


@lru_cache(maxsize=None)
def runs_without_namespaces():
    return Sandbox(isolated=False).output_of('import decimal\nprint(1)', '') == b'1\n'


def named(isolated):
    return 'namespaces' if isolated else 'limits'


box = pytest.fixture(box_of, params=brief(KINDS, KINDS[:1]), ids=named, name='box')
each_box = pytest.fixture(box_of, params=KINDS, ids=named, name='each_box')


def block(program):
    return f'Here:\n```python\n{program}\n```\nDone.'


def task_of(tests, **keys):
    columns = {name: keys.pop(name) for name in ('entry_point', ) if name in keys}
    row = dict(question='q', tests=tests, **columns)
    return create_task(dict(type='file', path=[row], reward=dict(type='code', tests='tests', **keys)))


def scores_of(task, *completions):
    found = task.checked_scores([task.problem(0)] * len(completions), list(completions))
    return [row if isinstance(row, TaskError) else row['code'] for row in found]


# ------------------------------------------------------------------------------------------------- extraction, tests
PROGRAMS = {
    '```python\nx = 1\n```': 'x = 1',
    'a\n ```py\nx = 1\n\ny = 2\n ```  \nb': 'x = 1\n\ny = 2',
    '```\nx = 1\n```': 'x = 1',
    '```Python3\nx\n```\nagain\n```python\nx\n```': 'x',
    '```bash\npip install x\n```\n```python\nx\n```': 'x',
}
NO_PROGRAMS = [
    '```python\nx\n```\n```python\ny\n```', '```python\nx = 1', '```python\n```python\nx\n```',
    '```python\nx\n```\n```', '```bash\nx\n```', 'x = 1', 'Use ```x = 1``` here', ''
]


@pytest.mark.parametrize('text, program', [*PROGRAMS.items(), *((text, None) for text in NO_PROGRAMS)])
def test_only_a_closed_block_of_python_is_a_program(text, program):
    assert block_of(text) == program


@pytest.mark.parametrize(
    'value',
    [
        PAIRS, [tuple(pair) for pair in PAIRS], json.dumps(PAIRS),
        [dict(input=a, output=b) for a, b in PAIRS],
        dict(inputs=['1', '10'], outputs=['2', '20\n']),
        json.dumps(dict(input=['1', '10'], output=['2', '20\n']))
    ],
    ids=lambda value: str(value)[:20]
)  # yapf: disable
def test_pairs_in_the_forms_of_data_sets(value):
    assert [list(pair) for pair in parsed(value).pairs] == PAIRS and not parsed(value).texts


@pytest.mark.parametrize(
    'value', [ASSERTS, json.dumps(ASSERTS), tuple(ASSERTS)], ids=lambda value: type(value).__name__
)
def test_texts_in_the_forms_of_data_sets(value):
    assert parsed(value) == ([], ASSERTS) and parsed('assert f(1)') == ([], ['assert f(1)'])


@pytest.mark.parametrize(
    'value',
    [None, 3, [], {}, [1], [['1']], [['1', 2]], [['a', 'b'], 'assert x'],
     dict(inputs=['1'], outputs=[]), '[]']
)
def test_tests_of_another_form(value):
    with pytest.raises(ValueError, match='must be texts of assert statements, or pairs'):
        parsed(value)


def test_other_tests_cost_their_row_alone():
    rows = [dict(question='q', tests=[1]), dict(question='r', tests=ASSERTS)]
    task = create_task(dict(type='file', path=rows, reward=dict(type='code', tests='tests')))
    lost, good = task.checked_scores([task.problem(0), task.problem(1)], [block(DOUBLE)] * 2)
    assert isinstance(lost, TaskError) and 'must be texts of assert' in lost.message and good == dict(code=1.0)


def test_the_share_of_tests_or_all_of_them():
    some = 'def double(n):\n    return 2 * n if n != 0 else 1\n'
    assert scores_of(task_of(ASSERTS), block(DOUBLE), block(some), block(DOUBLE), 'none', '') == [1., 0.75, 1., 0., 0.]
    program, partial = 'print(2 * int(input()))  ', 'n = int(input())\nprint(2 * n if n < 5 else 0)'
    assert scores_of(task_of(PAIRS), block(partial)) == [0.5]
    whole = task_of(PAIRS, program_in='whole', share=False)
    assert scores_of(whole, program, partial, block(program)) == [1., 0., 0.]


def test_check_gets_the_function_that_a_column_names():
    """The form of HumanEval."""
    tests = 'METADATA = {}\n\n\ndef check(candidate):\n    assert candidate(1) == 2\n    assert candidate([]) == []'
    task = task_of(tests, entry_point='double', function='entry_point')
    assert scores_of(task, block(DOUBLE), block('def double(n):\n    return n + 1')) == [1., 0.]


def test_what_passes_between_program_and_tests():
    """Plain data of every kind, names of Python's own functions, errors, classes, methods, modules of the tests."""
    program = (
        'import collections, math\n\n\ndef same(*a, **k):\n    return (a, k)\n\n\ndef fails(n):\n'
        '    raise KeyError(n)\n\n\n'
        'class Pair:\n    def __init__(self, a, b):\n        self.a, self.b = a, b\n    def total(self):\n'
        '        return self.a + self.b\n\n\ndef add(pairs):\n    return sum(p.total() for p in pairs)\n\n\n'
        'def count(text):\n    return collections.Counter(text)\n\n\ndef big(n):\n    return math.factorial(n)\n'
    )
    values = [1, -2.5, True, None, 'é\ud800', b'\0', 1e400, [1, [2]], (1, ), {1, 2}, frozenset([3]), {'a': {2: ()}}, 1j]
    tests = [f'inf = float("inf")\nassert same({value!r}, k={value!r}) == (({value!r},), dict(k={value!r}))'
             for value in values]  # yapf: disable
    tests += [
        'try:\n    fails(1)\nexcept KeyError:\n    pass\nelse:\n    assert False',
        'assert add([Pair(1, 2), Pair(3, 4)]) == 10',
        'p = Pair(1, 2)\nassert p.total() == 3',
        'assert count("aab") == {"a": 2, "b": 1}',
        'import math\nassert big(1500) == math.factorial(1500)',
        'import math\nassert math.isnan(same(float("nan"))[0][0])',
        'x = same(len("abc"))\nassert x[0] == (3,) and [y for y in x[0]] == [3]',
    ]
    assert Sandbox().passed(program, tests) == len(tests)


def test_subclasses_of_numbers_and_errors_with_several_arguments_pass_too():
    program = (
        'class Half(float):\n    __repr__ = lambda self: "half"\n\n\ndef half():\n    return Half(0.5)\n\n\n'
        'def read(data):\n    return data.decode()\n'
    )
    raises = 'try:\n    read({!r})\nexcept {}:\n    pass\nelse:\n    assert False'
    tests = ['assert half() == 0.5', raises.format(b'\xff', 'UnicodeDecodeError'), raises.format(3, 'AttributeError')]
    assert Sandbox().passed(program, tests) == len(tests)


def test_what_cannot_be_started_leaves_no_file_open():
    """Programs cannot be started when files or memory are short, and a reward then fails again and again."""
    why_not_isolated()
    before = len(os.listdir('/proc/self/fd'))
    for more in range(6):  # one with its pipes and files needs 8
        for run in (lambda box: box.output_of('', ''), lambda box: box.passed('', ['assert True'])):
            with few_files(more), pytest.raises(OSError, match='Too many open files'):
                run(Sandbox())
    assert len(os.listdir('/proc/self/fd')) == before


def test_what_fails():
    program = 'def same(n):\n    return n\n\n\nclass Pair:\n    pass\n'
    wrong = ['assert same(1) == 2', '1 / 0', 'assert nothing(1) == 1', 'syntax error', 'assert Pair == 3', 'exit()']
    assert Sandbox().passed(program, wrong) == 0
    assert Sandbox().passed(program, [*wrong, 'assert same(1) == 1']) == 1


# -------------------------------------------------------------------------------------------------- hostile programs
# What each tries; with assert statements it also defines no function, or one that gives a wrong answer.
FORGED = {
    'sys.exit(0)': 'import sys\nsys.exit(0)',
    'os._exit(0)': 'import os\nos._exit(0)',
    'a raised SystemExit': 'raise SystemExit',
    'exit in the function': 'import os\ndef double(n):\n    os._exit(0)',
    'a printed verdict': 'print("1111")\ndef double(n):\n    print("1111")\n    return 3',
    'a written verdict': 'import os\nfor fd in range(64):\n    try:\n        os.write(fd, b"1111\\n")\n'
    '    except OSError:\n        pass',
    'answers in advance': 'import os\nfor fd in range(64):\n    try:\n        os.write(fd, b\'["ok", true]\\n\' * 9)\n'
    '    except OSError:\n        pass\ndef double(n):\n    return 3',
    'equal to everything': 'class E:\n    __eq__ = __ge__ = __bool__ = __contains__ = lambda *a: True\n'
    '    __hash__ = None\n'
    'def double(n):\n    return E()',
    'equal numbers': 'class E(int):\n    __eq__ = lambda *a: True\n    __hash__ = None\ndef double(n):\n'
    '    return E(3)',
    'equal in a list': 'class E(list):\n    __eq__ = lambda *a: True\ndef double(n):\n    return E([3])',
    'no AssertionError': 'import builtins\nbuiltins.AssertionError = type("A", (BaseException,), {})\n'
    'builtins.float = int\n'
    'def double(n):\n    return 3',
    'other builtins': 'import builtins\nbuiltins.all = builtins.any = builtins.sorted = lambda *a: True\n'
    'def double(n):\n    return 3',
    'another json': 'import json\njson.dumps = lambda *a: \'["ok", ["object", [0]]]\'\ndef double(n):\n    return 3',
    'the frames of its caller': 'import sys\ndef double(n):\n    f = sys._getframe()\n    while f:\n'
    '        for k in list(f.f_globals):\n            if "test" in k or "expected" in k:\n'
    '                return f.f_globals[k]\n'
    '        f = f.f_back\n    return 3',
    'all objects of its interpreter': 'import gc\ndef double(n):\n    for o in gc.get_objects():\n'
    '        if isinstance(o, dict) and "tests" in o:\n            return o["tests"]\n    return 3',
    'a trace of its tests': 'import ctypes, os\nlibc = ctypes.CDLL(None)\nfor pid in range(1, 64):\n'
    '    libc.ptrace(16, pid, 0, 0)\ndef double(n):\n    return 3',
    'a killed parent': 'import os, signal\nfor pid in (os.getppid(), 1):\n    try:\n'
    '        os.kill(pid, signal.SIGTERM)\n'
    '    except OSError:\n        pass\ndef double(n):\n    return 3',
    'malformed answers': 'import json\njson.dumps = lambda *a: \'["ok", ["list", 3]]\'\ndef double(n):\n    return 3',
    'a name of the tests': 'def all(x):\n    return True\ndef double(n):\n    return 3',
    'an error of each kind': 'def double(n):\n    raise BaseException("1")',
    'raised assertions': 'def double(n):\n    raise AssertionError',
}  # yapf: disable


@pytest.mark.parametrize('name', FORGED)
def test_a_forged_success_passes_no_test(box, name):
    assert box.passed(FORGED[name], ASSERTS) == 0


@pytest.mark.parametrize('name', brief(FORGED, ['os._exit(0)', 'answers in advance']))
def test_a_forged_output_is_not_that_of_the_test(box, name):
    written = box.output_of(FORGED[name], '1')
    assert written is None or written.strip() != b'2'


def test_without_a_function_that_is_wrong_the_same_programs_would_pass(each_box):
    """The power of the table: what makes it fail is the wrong answer alone."""
    assert each_box.passed(FORGED['other builtins'].replace('return 3', 'return 2 * n'), ASSERTS) == len(ASSERTS)


def result(box, program, text=''):
    written = box.output_of(program, text)
    return written and written.decode().strip()


@pytest.mark.algotest
def test_a_bounded_fork_bomb_gets_a_few_processes_and_leaves_none(box):
    bomb = (
        'import os, time\nmade = 0\nfor _ in range(40):\n    try:\n        pid = os.fork()\n'
        '    except OSError:\n        break\n'
        '    if pid == 0:\n        os.setsid()\n        time.sleep(30)\n        os._exit(0)\n    made += 1\nprint(made)'
    )
    assert 0 <= int(result(box, bomb)) <= box.processes
    assert left_over() == []


def test_nothing_runs_in_the_background(each_box):
    program = (
        'import os, sys, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(60)\n'
        '    os._exit(0)\nprint("ended")'
    )
    begun = time.monotonic()
    assert result(each_box, program) == 'ended' and time.monotonic() - begun < 30
    assert left_over() == []


def left_over():
    """Processes of programs that still run."""
    found, until = [None], time.monotonic() + 2
    while found and time.monotonic() < until:
        found = []
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try:
                with open(f'/proc/{pid}/cmdline', 'rb') as f:
                    line = f.read()
                with open(f'/proc/{pid}/stat') as f:
                    zombie = f.read().rpartition(')')[2].split()[0] == 'Z'
            except OSError:
                continue
            if b'confined.py' in line and not zombie:
                found.append(pid)
    return found


ENDLESS = {
    'loop': 'while True:\n    pass',
    'signals': 'import signal, time\nfor kind in (signal.SIGALRM, signal.SIGTERM, signal.SIGXCPU):\n'
    '    signal.signal(kind, lambda *a: None)\nsignal.alarm(1)\nwhile True:\n    pass',
    'caught': 'while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass',
    'number': '9 ** 9 ** 9 ** 9',
    'sleep': 'import time\ntime.sleep(1000)',
    'stopped': 'import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)',
    'recursion': 'import sys\nsys.setrecursionlimit(10 ** 9)\ndef f():\n    f()\nf()',
}  # yapf: disable


@pytest.mark.parametrize('name', brief(ENDLESS, ['signals', 'sleep', 'stopped']))
def test_an_endless_program_ends_at_its_limit(name):
    limited, begun = Sandbox(seconds=0.3), time.monotonic()  # of CPU time one whole second
    assert result(limited, ENDLESS[name]) is None
    assert time.monotonic() - begun < 30 and left_over() == []


def test_an_endless_function_costs_its_test_and_those_after_it():
    program = (
        'import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 1))\n'  # sooner than its limit
        'def double(n):\n    while n == 0:\n        pass\n    return 2 * n'
    )
    assert Sandbox().passed(program, ASSERTS) == 1
    assert left_over() == []


@pytest.mark.algotest
def test_huge_memory(box):
    assert result(box._replace(memory=256 << 20), 'x = bytearray(1 << 30)\nprint(len(x))') is None
    assert result(box, 'x = bytearray(1 << 27)\nprint(len(x))') == str(1 << 27)


def test_huge_output(box):
    begun = time.monotonic()
    assert box.output_of('import sys\nwhile True:\n    sys.stdout.write("x" * 65536)', '') is None
    assert time.monotonic() - begun < 14  # of 15 seconds
    assert box._replace(output=10).output_of('print("x" * 11)', '') is None
    assert box._replace(output=12).output_of('print("x" * 11)', '') == b'x' * 11 + b'\n'
    assert box.passed('def double(n):\n    return "x" * (1 << 23)', ASSERTS) == 0


def test_a_huge_file(box):
    program = 'with open("big", "wb") as f:\n    for _ in range(64):\n        f.write(b"x" * (1 << 20))\nprint("whole")'
    assert result(box, program) is None


def test_no_secret_of_the_parent_and_no_file_of_it(box, monkeypatch, tmp_path):
    monkeypatch.setenv('MY_SECRET', 'hidden')
    secret = tmp_path / 'secret'
    secret.write_text('hidden')
    secret.chmod(0o600)
    program = (
        'import os\nfound = [v for v in os.environ.values() if "hidden" in v]\n'
        f'for path in ({str(secret)!r}, "/proc/{os.getpid()}/environ", "/etc/shadow", "/root/.bash_history"):\n'
        '    try:\n        found.append(open(path, "rb").read())\n    except OSError:\n        pass\nprint(found)'
    )
    if not box.isolated and os.geteuid() != 0:
        pytest.skip('without namespaces a program reads what its user reads')
    assert result(box, program) == '[]'


def test_no_file_descriptor_of_the_parent(box, tmp_path):
    with open(tmp_path / 'kept', 'w') as kept, socket.socket() as own:
        os.set_inheritable(kept.fileno(), True)
        os.set_inheritable(own.fileno(), True)
        program = (
            'import os\nfound = []\nfor fd in range(1024):\n    try:\n        os.fstat(fd)\n        found.append(fd)\n'
            '    except OSError:\n        pass\nprint(found)'
        )
        assert result(box, program) == '[0, 1, 2]'


def test_what_it_writes_reaches_neither_screen_nor_input_of_the_parent(box, capfd):
    program = (
        'import os, sys\nsys.stderr.write("seen")\nos.write(2, b"seen")\n'
        'for path in ("/dev/tty", "/dev/stdout", "/dev/pts/0"):\n'
        '    try:\n        open(path, "w").write("seen")\n    except OSError:\n        pass\nprint(sys.stdin.read())'
    )
    assert result(box, program, 'given').endswith('given')
    box.passed('print("seen")\n', ['print("seen")\nassert True'])
    out, err = capfd.readouterr()
    assert 'seen' not in out + err


def test_files_cannot_be_deleted_or_kept(box, tmp_path):
    victim = tmp_path / 'victim'
    victim.write_text('here')
    program = (
        'import os, shutil\n'
        f'for path in ({str(victim)!r}, {str(tmp_path)!r}, os.__file__, {os.path.abspath(__file__)!r}):\n'
        '    try:\n        os.remove(path)\n    except OSError:\n        shutil.rmtree(path, ignore_errors=True)\n'
        'try:\n    open("left", "x")\n    print("new")\nexcept FileExistsError:\n    print("old")'
    )
    if not box.isolated and os.geteuid() != 0:
        pytest.skip('without namespaces a program deletes what its user deletes')
    assert result(box, program) == result(box, program) == 'new'
    assert victim.read_text() == 'here' and os.path.exists(os.__file__) and os.path.exists(__file__)


@pytest.mark.skipif(True not in KINDS, reason='needs namespaces')
class TestNamespaces:
    box = Sandbox(isolated=True)

    def test_no_network(self):
        with socket.create_server(('127.0.0.1', 0)) as server:
            port = server.getsockname()[1]
            program = (
                'import socket\ntry:\n'
                f'    socket.create_connection(("127.0.0.1", {port}), 1)\n    print("connected")\n'
                'except OSError as error:\n    print("refused")'
            )
            assert result(self.box, program) == 'refused'
            assert b'connected' in subprocess.run(
                [os.sys.executable, '-c', program], capture_output=True, check=True
            ).stdout

    def test_only_pythons_own_files_read_only(self):
        program = (
            'import os\nprint(sorted(set(os.listdir("/")) - {"lib", "lib64", "usr", "work"}))\n'
            'import json\nfor path in (json.__file__, json.__path__[0] + "/new", "/usr/lib/new", "/new"):\n'
            '    try:\n        open(path, "a")\n        print("writes", path)\n    except OSError:\n        pass'
        )
        lines = result(self.box, program).splitlines()
        first = {path.split(os.sep)[1] for path in map(os.path.realpath, [os.path.dirname(os.__file__)])}
        assert set(eval(lines[0])) <= first and lines[1:] == []

    def test_no_privilege_and_no_way_to_get_one(self):
        program = (
            'import ctypes, os\nlibc = ctypes.CDLL(None)\ndone = []\n'
            'for name, *a in (("mount", b"x", b"/work", b"tmpfs", 0, None), ("chroot", b"/"), ("setuid", 0),\n'
            '                 ("sethostname", b"x", 1), ("umount2", b"/usr/lib", 2)):\n'
            '    if getattr(libc, name)(*a) == 0:\n        done.append(name)\n'
            'print(done, os.getuid() != 0, os.listdir("/proc") if os.path.isdir("/proc") else [])'
        )
        assert result(self.box, program) == '[] True []'

    def test_processes_of_others_are_not_there(self):
        program = (
            'import os\ndone = []\nfor pid in range(2, 300):\n    if pid != os.getpid():\n        try:\n'
            '            os.kill(pid, 9)\n            done.append(pid)\n        except OSError:\n            pass\n'
            'print(done)'
        )
        assert result(self.box, program) == '[]'


# From here on the kernel refuses these calls, by numbers of x86_64: a filter of seccomp.
REFUSES = """
import ctypes, struct
from dizoo_llm.tasks import create_task
calls = {}
lines = [(0x20, 0, 0, 0), *((0x15, len(calls) - i, 0, n) for i, n in enumerate(calls)), (6, 0, 0, 0x7fff0000)]
lines.append((6, 0, 0, 0x50001))
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *line) for line in lines))
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, ctypes.create_string_buffer(struct.pack('HP', len(lines), ctypes.addressof(code)))) == 0
row, reward = dict(question='q', tests='assert f() == 1'), dict(type='code', tests='tests')
create_task(dict(type='file', path=[row], reward=[reward]))
"""
UNSHARE, PRLIMIT = 272, 302


@pytest.mark.skipif(platform.machine() != 'x86_64', reason='names calls of the kernel by their numbers')
class TestRefused:
    """The reason is the one of the kernel, and a system on which nothing runs is an error."""

    @staticmethod
    def told(tmp_path, *calls):
        return Process(run_code, REFUSES.format(calls), tmp_path).end()

    def test_a_system_without_namespaces(self, tmp_path):
        code, out = self.told(tmp_path, UNSHARE)
        assert 'a program could not be confined ([Errno 1] unshare: Operation not permitted)' in out
        assert (code == 0) == runs_without_namespaces(), out

    def test_a_system_that_runs_nothing(self, tmp_path):
        code, out = self.told(tmp_path, UNSHARE, PRLIMIT)
        assert code == 1 and re.search('no program can be run: .*unshare: .*; .*not permitted', out), out


def test_what_cannot_be_isolated_is_said_once_at_the_start(monkeypatch, capsys):
    monkeypatch.setattr('dizoo_llm.rewards.code.why_not_isolated', lambda: 'a reason of this test')
    for _ in range(3):
        task_of(ASSERTS)
    assert capsys.readouterr().out.count('no namespaces for programs (a reason of this test)') == 1


# ---------------------------------------------------------------------------------------------------------- the config
def test_beside_another_reward_and_for_a_python_file(tmp_path):
    reward = dict(code=dict(type='code', tests='tests'), short=lambda completion: len(completion) < 5)
    task = create_task(dict(type='file', path=[dict(question='q', tests=ASSERTS)], reward=reward))
    assert task.scores_batches and task.limits_each
    assert task.checked_score(task.problem(0), block(DOUBLE)) == dict(code=1.0, short=0.0)
    with_tests = PROBLEMS.replace('answer=n + 1', 'answer=n + 1, tests=["assert f() == %d" % n]')
    task = python_task(tmp_path, with_tests, reward=dict(type='code', tests='tests'))
    assert task.checked_score(task.problem(3), block('def f():\n    return 3')) == dict(code=1.0)


@pytest.mark.parametrize(
    'changes, told',
    [
        (dict(tests='test'), "reward.tests = 'test': there is no such column; did you mean 'tests'"),
        (dict(tests='some'), "reward.tests = 'some': problem 1 has no such column"),
        (dict(function='name'), "reward.function = 'name': there is no such column"),
        (dict(program_in='fence'), "reward.program_in = 'fence': must be one of 'block', 'whole'"),
        (dict(seconds=0), 'reward.seconds = 0: must be a number'),
        (dict(memory=1), 'reward.memory = 1: must be an integer of at least 64'),
        (dict(processes=0), 'reward.processes = 0: must be'),
        (dict(share='yes'), "reward.share = 'yes': must be"),
        (dict(test='tests'), "reward.test = 'tests': unknown key"),
    ]
)  # yapf: disable
def test_a_wrong_config(changes, told):
    rows = [dict(question='q', tests=ASSERTS, some=1), dict(question='r', tests=ASSERTS)]
    with pytest.raises(ConfigError, match=told):
        create_task(dict(type='file', path=rows, reward=[{**dict(type='code', tests='tests'), **changes}]))
