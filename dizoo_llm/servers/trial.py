"""
What a process of ``Sandbox`` does: it runs a program on its input, answers calls of a program's functions, or runs
assert statements that call them. The statements and the program are in different processes, between which plain data
pass. What a program changes in its interpreter, writes, or exits with, therefore makes no assertion true.
"""
import ast
import builtins
import json
import os
import sys
import types

MOST_BYTES = 4_000_000  # of a call or of its answer


class Remote:
    """A function or another object of the program. Calls are answered by plain data, or by such an object."""

    def __init__(self, ask, path):
        self._ask, self._path = ask, path

    def __call__(self, *args, **kwargs):
        return self._ask(self._path, args, kwargs)

    def __getattr__(self, name):
        if name.startswith('__'):
            raise AttributeError(name)
        return Remote(self._ask, [*self._path, name])


SEVERAL = dict(list=list, tuple=tuple, set=set, frozenset=frozenset)


def encoded(value, keep):
    """A value as JSON. ``keep`` gives what stands for one that is no plain data."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    for kind in (float, complex):
        if isinstance(value, kind):
            return [kind.__name__, kind.__repr__(value)]
    if isinstance(value, (bytes, bytearray)):
        return ['bytes', bytes(value).hex()]
    if isinstance(value, dict):
        return ['dict', [[encoded(k, keep), encoded(v, keep)] for k, v in value.items()]]
    for name, kind in SEVERAL.items():
        if isinstance(value, kind):
            return [name, [encoded(each, keep) for each in value]]
    return ['object', keep(value)]


def decoded(value, find):
    if not isinstance(value, list):
        return value
    name, content = value
    if name in SEVERAL:
        return SEVERAL[name](decoded(each, find) for each in content)
    if name == 'dict':
        return {decoded(k, find): decoded(v, find) for k, v in content}
    if name == 'bytes':
        return bytes.fromhex(content)
    if name in ('float', 'complex'):
        return getattr(builtins, name)(content)
    if name == 'object':
        return find(content)
    raise ValueError('malformed')


def send(file, value):
    file.write(json.dumps(value).encode() + b'\n')
    file.flush()


def receive(file):
    line = file.readline(MOST_BYTES)
    if not line.endswith(b'\n'):
        raise EOFError('the program has ended')
    return json.loads(line)


def module_of(text, name):
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(text, 'program.py', 'exec'), vars(module))
    return module


def program(job):
    """Run a program on standard input."""
    sys.argv = ['program.py']
    module_of(job['program'], '__main__')


def functions(job):
    """Answer calls of the functions of a program."""
    questions, answers = (os.fdopen(fd, mode) for fd, mode in zip(job['fds'], ('rb', 'wb')))
    kept = []

    def keep(value):
        kept.append(value)
        return [len(kept) - 1]

    def find(path):
        found = kept[path[0]] if isinstance(path[0], int) else getattr(module, path[0])
        for name in path[1:]:
            found = getattr(found, name)
        return found

    try:
        module = module_of(job['program'], 'program')
    except BaseException as error:  # a program may raise anything
        return send(answers, ['error', type(error).__name__, str(error)[:1000]])
    while True:
        path, args, kwargs = receive(questions)
        try:
            result = find(path)(*decoded(args, find), **decoded(kwargs, find))
            send(answers, ['ok', encoded(result, keep)])
        except BaseException as error:
            send(answers, ['error', type(error).__name__, str(error)[:1000]])


def tests(job):
    """Run assert statements, and write 1 or 0 for each text of them."""
    answers, questions, verdicts = (os.fdopen(fd, mode) for fd, mode in zip(job['fds'], ('rb', 'wb', 'wb')))

    def path_of(value):
        if isinstance(value, Remote):
            return value._path
        raise TypeError(f'{type(value).__name__} cannot be given to a program, only plain data')

    def ask(path, args, kwargs):
        send(questions, [path, encoded(args, path_of), encoded(kwargs, path_of)])
        kind, *content = receive(answers)
        if kind == 'ok':
            return decoded(content[0], lambda path: Remote(ask, path))
        raised = getattr(builtins, content[0], None)
        ordinary = isinstance(raised, type) and issubclass(raised, Exception)
        kind = raised if ordinary else RuntimeError
        raise kind.__new__(kind, content[1])  # without __init__, for which some need more than a text

    for text in job['tests']:
        try:
            tree = ast.parse(text)
            names = ({job['function']} | free_names(tree)) - {None}
            namespace = {name: Remote(ask, [name]) for name in names}
            exec(compile(tree, 'tests.py', 'exec'), namespace)
            if job['function'] and callable(namespace.get('check')):
                namespace['check'](Remote(ask, [job['function']]))
            passed = True
        except BaseException:  # whatever it raises
            passed = False
        verdicts.write(b'1' if passed else b'0')
        verdicts.flush()


def free_names(tree):
    """Names that a text uses and does not define, without those of Python."""
    used, own = set(), set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else own).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, ast.alias):
            own.add((node.asname or node.name).partition('.')[0])
        elif isinstance(node, ast.ExceptHandler):
            own.add(node.name)
    return used - own
