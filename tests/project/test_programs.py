"""Programs outside the packages: what they import from the packages exists."""
import ast
import glob
import importlib.util
import os

import pytest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
PACKAGES = ('ding_common', 'ding_grpo', 'dizoo_llm')
BY_PATH = [  # programs that are started by their path
    path for folder in ('tools', 'examples', 'config')
    for path in glob.glob(os.path.join(ROOT, folder, '**', '*.py'), recursive=True)
]
FILES = [*BY_PATH, *glob.glob(os.path.join(ROOT, 'benchmarks', '**', '*.py'), recursive=True)]


def imported(path):
    """(module, name) of each name that a file imports from the packages."""
    with open(path) as f:
        tree = ast.parse(f.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or '').split('.')[0] in PACKAGES:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.split('.')[0] in PACKAGES)


def exists(module, name):
    try:
        found = importlib.import_module(module)
        return name is None or hasattr(found, name) or bool(importlib.import_module(f'{module}.{name}'))
    except ImportError:
        return False


@pytest.mark.unittest
class TestImports:

    def test_of_programs_exist(self):
        assert len(FILES) > 40
        names = {(path, *name) for path in FILES for name in imported(path)}
        assert len(names) > 100
        assert [name for name in sorted(names, key=str) if not exists(*name[1:])] == []

    def test_a_wrong_one_is_found(self, tmp_path):
        path = tmp_path / 'wrong.py'
        path.write_text('from ding_grpo.rl_utils.products import product\nfrom ding_grpo.policy import nothing\n')
        assert [exists(*name) for name in imported(path)] == [False, False]


@pytest.mark.unittest
@pytest.mark.parametrize('path', BY_PATH, ids=os.path.basename)
def test_a_program_hides_no_package(path):
    """Its folder comes first in ``sys.path`` when it runs: torch would import ``cuda.bindings`` from a ``cuda.py``."""
    found = importlib.util.find_spec(os.path.splitext(os.path.basename(path))[0])
    places = [] if found is None else found.submodule_search_locations or [found.origin]
    own = os.path.abspath(ROOT) + os.sep
    assert all(place.startswith(own) and 'site-packages' not in place for place in places)  # a folder such as runs/
