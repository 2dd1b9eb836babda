"""Programs outside the packages: what they import from the packages exists."""
import glob
import importlib.util
import os

import pytest

from tests.processes import ROOT
from tests.project.test_arrows import PACKAGES, imports_of

BY_PATH = [  # programs that are started by their path
    path for folder in ('tools', 'examples', 'config')
    for path in glob.glob(os.path.join(ROOT, folder, '**', '*.py'), recursive=True)
]
FILES = [*BY_PATH, *glob.glob(os.path.join(ROOT, 'benchmarks', '**', '*.py'), recursive=True)]


def exists(module, name=None):
    try:
        found = importlib.import_module(module)
        return name is None or hasattr(found, name) or bool(importlib.import_module(f'{module}.{name}'))
    except ImportError:
        return False


def test_imports_of_programs_exist():
    names = set()
    for path in FILES:
        with open(path) as f:
            names |= {(path, *name) for name in imports_of(f.read()) if name[0].startswith(PACKAGES)}
    assert len(names) > 100
    assert [name for name in sorted(names, key=str) if not exists(*name[1:])] == []
    assert not exists('ding_grpo.rl_utils.products', 'product') and not exists('ding_grpo.policy', 'nothing')


def test_the_plugin_is_imported_before_the_pipelines_that_it_completes():
    wrong, number = [], 0
    for path in FILES:
        with open(path) as f:
            before = []
            for module, name in imports_of(f.read()):
                if module == 'ding.entry' and str(name).startswith('serial_pipeline'):
                    number += 1
                    wrong += [path] * (not any(name.startswith('ding_grpo') for name in before))
                before.append(module)
    assert number > 10 and wrong == []


@pytest.mark.parametrize('path', BY_PATH, ids=os.path.basename)
def test_a_program_hides_no_package(path):
    """Its folder comes first in ``sys.path`` when it runs: torch would import ``cuda.bindings`` from a ``cuda.py``."""
    found = importlib.util.find_spec(os.path.splitext(os.path.basename(path))[0])
    places = [] if found is None else found.submodule_search_locations or [found.origin]
    assert all(place.startswith(ROOT + os.sep) and 'site-packages' not in place for place in places)


def test_the_page_of_faults_has_those_that_are_injected():
    from tools.fault_cases import FAULTS
    with open(os.path.join(ROOT, 'docs', 'results', 'faults.md'), encoding='utf-8') as f:
        rows = [line.split(' | ')[0].removeprefix('| ') for line in f if line.startswith('| ')]
    assert rows[1:] == [fault.name for fault in FAULTS]
