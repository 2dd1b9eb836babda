"""
Processes for tests. ``Process`` forks one that has imported this project, which takes seconds otherwise; tests of the
commands themselves start them with ``subprocess``.
"""
import atexit
import multiprocessing
import os
import runpy
import shlex
import signal
import subprocess
import sys
import textwrap
import traceback
from contextlib import contextmanager

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..'))
_context = multiprocessing.get_context('forkserver')
_context.set_forkserver_preload(['dizoo_llm', 'ding_grpo', 'ding.entry.cli', 'torch.distributed', 'tests.processes'])


def run_ding(command):
    """What ``python -m ding_grpo`` runs."""
    from ding_grpo.__main__ import main
    main(shlex.split(command))


def run_program(words):
    """What ``python -m WORDS`` does, but for the picture of the learning curve, half of the time of a short run."""
    import ding_grpo.run.report as report
    report.draw_curves = lambda runs, path: None
    sys.argv = words
    runpy.run_module(words[0], run_name='__main__', alter_sys=True)


def run_code(code):
    exec(compile(code, 'code.py', 'exec'), {})


class Process:
    """A process of a function of a module and its argument, as ``subprocess.Popen`` is one of a command. The folder is
    created and becomes its current one; the variables are added to those of this process."""

    def __init__(self, function, argument, folder, **variables):
        os.makedirs(folder, exist_ok=True)
        self._out = os.path.join(folder, f'{function.__name__}.{id(self)}.txt')
        variables = dict(os.environ, OMP_NUM_THREADS='1', **variables)
        self._process = _context.Process(target=_work, args=(function, argument, str(folder), self._out, variables))
        self._process.start()
        self.pid = self._process.pid

    def poll(self):
        return self._process.exitcode

    def out(self):
        with open(self._out) as f:
            return f.read()

    def end(self, seconds=120):
        """(exit code, stdout and stderr together); it is killed after so many seconds."""
        self._process.join(seconds)
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            raise TimeoutError(self.out())
        return self.poll(), self.out()


def _work(function, argument, folder, out, variables):
    os.setsid()
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    sys.path.insert(0, folder)
    file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.stdout.reconfigure(line_buffering=True)
    import torch
    torch.set_num_threads(1)
    code = 1
    try:
        function(argument)
        code = 0
    except SystemExit as error:
        code = error.code or 0
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()  # as Python does at its end; multiprocessing does not
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def connected(function, argument, folders, machines=1):
    """Processes of one run, as torchrun would start them on so many machines, one in each of the folders."""
    if len(folders) == 1:
        return [Process(function, argument, folders[0])]
    from ding.utils import find_free_port
    address = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(find_free_port('')), WORLD_SIZE=str(len(folders)))
    on_each = len(folders) // machines
    address['LOCAL_WORLD_SIZE'] = str(on_each)
    return [
        Process(function, argument, folder, RANK=str(rank), LOCAL_RANK=str(rank % on_each), **address)
        for rank, folder in enumerate(folders)
    ]


def meet(folder, code):
    """Two processes that run code in which ``parallel`` connects them: [(exit code, output)]."""
    code = f"""
import torch
from ding_common import parallel
parallel.start(False)
try:
{textwrap.indent(code.strip(), '    ')}
finally:
    parallel.end()
"""
    return [process.end() for process in connected(run_code, code, [folder / '0', folder / '1'])]


@contextmanager
def one_of(processes, rank=0, backend='fake'):
    """A context in which this process is one of several. What it sends reaches nobody: it gets its own from each."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group(backend, rank=rank, world_size=processes, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def python(*arguments, folder=None, encoding='utf-8', **variables):
    """Python with these arguments in a process of its own and a folder, to its end: its ``CompletedProcess``."""
    command = [sys.executable, *map(str, arguments)]
    variables = {**os.environ, 'PYTHONPATH': ROOT, **variables}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, encoding=encoding, timeout=300)
