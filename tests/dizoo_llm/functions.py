"""Functions that a model calls, harmless and hostile, and the tasks of tests that offer them."""
import inspect
import json
import os
import signal
import subprocess
import sys
import time

from dizoo_llm import Problem, Task
from dizoo_llm.tasks import ToolsTask, Turn

HERE = f'{__name__}:'
CALC = 'dizoo_llm.tasks.calculator:calc'


def described(function):
    """Gives a function the docstring that a user's has, with each of its parameters."""
    names = ''.join(f'\n    {name}: Of the call.' for name in inspect.signature(function).parameters)
    function.__doc__ = f'Do it.\n\nArgs:{names}\n'
    return function


class Product(Task):
    weights, return_part, must_end, chars = dict(right=1.0), 'right', True, '0123456789* '

    def __len__(self):
        return 2

    def problem(self, index):
        return Problem(f'{index + 12} * 34', str((index + 12) * 34))

    def score(self, problem, completion):
        if completion == 'crash':
            raise OSError('gone')
        return dict(right=float(completion == problem.answer))


class Counted(Product):
    weights = dict(calls=1.0)


@described
def convert(number: int, factor: float = 2.0, unit: str = 'm', exact: bool = False) -> str:
    return f'{number!r} {factor!r} {unit!r} {exact!r}'


@described
def left() -> float:
    return signal.getitimer(signal.ITIMER_REAL)[0]


@described
def hostile(what: str) -> str:
    if what == 'hang':
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass
    if what == 'deaf':
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
    if what == 'children':
        child = subprocess.Popen(['sleep', '61.25'])
        time.sleep(60 if child else 0)
    if what == 'end':
        os._exit(3)
    if what == 'exit':
        sys.exit('leaving')
    if what == 'print':
        print('x' * 1_000_000)
        print('x' * 1_000_000, file=sys.stderr)
    return dict(
        megabyte='y' * 1_000_000, special='<eos><pad>', surrogate='a\ud800b', print='done', pid=str(os.getpid())
    )[what]


@described
def leave(path: str) -> str:
    with open(path, 'a') as f:
        f.write('once')
    os._exit(3)


@described
def wide(number: int) -> str:
    return '\0' * number


@described
def untyped(number):
    pass


@described
def listed(numbers: list) -> str:
    pass


def raising(problem, turns):
    return turns[0]


def only_call(problem, turns):
    return call('calc', expression='1')


def call(name, **arguments):
    return f'<tool_call>{json.dumps(dict(name=name, arguments=arguments))}</tool_call>'


def tools(*functions, **options):
    return ToolsTask(Product(), list(functions or [CALC]), **options)


def reply(task, text, cut=False):
    return task.checked_respond(task.problem(0), None, Turn(text, 0, cut))


def said(task, *texts):
    """What the calls are answered with."""
    return [message['content'] for text in texts for message in reply(task, text).text]
