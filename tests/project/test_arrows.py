"""The arrows of docs/design/design.md: which part may import which."""
import ast
import glob
import os
from functools import cache

import pytest

from tests.processes import ROOT

# The rooms of ding_grpo in the order in which data passes: each imports from those before it, and from itself.
ROOMS = [
    'rl_utils', 'model', 'rollout', 'config', 'data', 'act', 'learn', 'logs', 'collect', 'evaluate', 'extras', 'engine',
    'instruments', 'run', 'policy', 'framework', 'envs', 'loop', 'entry', 'compat', 'footprint', 'check', 'words',
    'migrate', 'from_ppo', 'compare', 'gradient_bench', 'report', 'sharing', 'replay', 'bisect', 'verify', 'branch',
    'bonus', 'preflight', 'testing', 'pytest_plugin', 'completion', 'train', '__main__'
]
PACKAGES = ('ding_common', 'ding_grpo', 'dizoo_llm')
MOST_MODULES = 14  # of a room and its folders, each
# The same of dizoo_llm, whose interface is its __init__.
DIZOO_LLM = [
    'servers', 'base', 'rewards', 'data', 'tasks', 'text', 'models', 'preflight', 'envs', 'agents', 'sft', 'play',
    'interpolate', 'train_reward_model', '__init__'
]
ORDER = [
    'ding_common', *(f'ding_grpo.{room}' for room in ROOMS), 'ding_grpo.__init__',
    *(f'dizoo_llm.{room}' for room in DIZOO_LLM)
]


def part_of(module):
    package, _, room = module.partition('.')
    return package if package == 'ding_common' else f"{package}.{room.partition('.')[0] or '__init__'}"


def imports_of(source, here=''):
    """(module, name or None) of each import in a text or a tree; ``here`` is the package of its relative imports."""
    for node in ast.walk(ast.parse(source) if isinstance(source, str) else source):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here.rsplit('.', node.level - 1)[0] if node.level else ''
            target = '.'.join(filter(None, [base, node.module]))
            yield from ((f'{target}.{a.name}', None) if node.module is None else (target, a.name) for a in node.names)


@cache
def sources():
    """(path, tree) of each file of the packages."""
    paths = [path for package in PACKAGES for path in glob.glob(os.path.join(ROOT, package, '**/*.py'), recursive=True)]
    found = []
    for path in paths:
        with open(path, encoding='utf-8') as f:
            found.append((os.path.relpath(path, ROOT), ast.parse(f.read())))
    return found


@cache
def imports():
    """(module, imported module) of the packages."""
    found = []
    for path, tree in sources():
        name = path[:-3].replace(os.sep, '.')
        found += [(name.removesuffix('.__init__'), target) for target, _ in imports_of(tree, name.rpartition('.')[0])]
    return found


def test_no_part_imports_from_one_after_it_or_of_the_other_package():
    own = {(part_of(a), part_of(b)) for a, b in imports() if b.split('.')[0] in PACKAGES}
    assert len(own) > 30
    found = {(a, b) for a, b in own if ORDER.index(a) < ORDER.index(b)}
    assert {(a, b) for a, b in found if b != 'ding_grpo.__init__' or not a.startswith('ding_grpo.')} == set()
    assert not {b for a, b in own if a == 'dizoo_llm.servers' and b != a}  # its programs run with -I
    assert not {(a, b) for a, b in own if 'ding_common' not in (a, b) and a.split('.')[0] != b.split('.')[0]}


def test_no_folder_has_more_modules_than_one_can_look_over():
    for folder, _, files in (x for p in ('ding_grpo', 'dizoo_llm') for x in os.walk(os.path.join(ROOT, p))):
        modules = [name for name in files if name.endswith('.py') and name != '__init__.py']
        grown = os.path.relpath(folder, ROOT).replace(os.sep, '/') in ('ding_grpo/model', 'ding_grpo/rl_utils')
        assert len(modules) <= MOST_MODULES or grown, folder


def test_no_modules_import_each_other_in_a_circle():
    graph = {}
    for a, b in imports():
        graph.setdefault(a, set()).add(b)
    while leaves := [a for a, found in graph.items() if not any(b in graph for b in found)]:
        for a in leaves:
            del graph[a]
    assert not graph


def test_no_long_file_and_no_long_function():
    """Lines of a function are counted without its docstring."""
    for path, tree in sources():
        assert not tree.body or tree.body[-1].end_lineno <= 350, path
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                first = node.body[0]
                told = first.end_lineno - first.lineno + 1 if ast.get_docstring(node) is not None else 0
                assert node.end_lineno - node.lineno + 1 - told <= 60, f'{path}: {node.name}'


def test_every_text_file_is_opened_with_an_encoding():
    """UTF-8 whatever the locale: a file that is written in a Latin-1 or GBK locale is read in another."""
    found = 0
    for path, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'open':
                found += 1
                binary = len(node.args) > 1 and 'b' in node.args[1].value
                assert binary or 'encoding' in {k.arg for k in node.keywords}, f'{path}:{node.lineno}'
    assert found > 20


@pytest.mark.parametrize('part', ['ding_grpo.rl_utils', 'ding_grpo.rollout'])
def test_needs_torch_alone(part):
    outside = {b.split('.')[0] for a, b in imports() if part_of(a) == part}
    assert outside <= {
        'torch', 'typing', 'collections', 'dataclasses', 'math', 'functools', 'inspect', 'platform', 'ding_grpo'
    }


def test_no_weights_in_the_environment():
    others = (
        'dizoo_llm.models', 'dizoo_llm.play', 'dizoo_llm.sft', 'dizoo_llm.train_reward_model', 'dizoo_llm.interpolate'
    )
    own = [(part_of(a), b) for a, b in imports() if part_of(a).startswith('dizoo_llm.')]
    outside = {b.split('.')[0] for part, b in own if part not in others}
    assert 'torch' not in outside
