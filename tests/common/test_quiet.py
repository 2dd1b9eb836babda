import os

import pytest

from tests.cases import long
from tests.processes import ROOT, python

pytestmark = pytest.mark.unittest


@pytest.mark.parametrize('module', ['ding_grpo, ding', long('dizoo_llm')])
def test_importing_prints_nothing_and_freezes_nothing(module):
    # DI-engine and old gym print some ten lines when they are imported plainly
    run = python('-c', f'import gc; import {module}; assert gc.isenabled() and gc.get_freeze_count() == 0')
    assert (run.returncode, run.stdout, run.stderr) == (0, '', '')


def test_a_warning_is_dropped_also_after_gym_has_asked_for_it(tmp_path):
    # On Python 3.12 that is werkzeug's and DI-engine's: gym puts a filter for deprecations before all others.
    (tmp_path / 'ding').mkdir()
    (tmp_path / 'ding' / '__init__.py').write_text('')
    warning = 'warnings.simplefilter("once", DeprecationWarning)\nwarnings.warn("old", DeprecationWarning)\n'
    (tmp_path / 'ding' / 'entry.py').write_text(f'import warnings\n{warning}')
    code = (
        'import warnings; from ding_common import import_ding; before = warnings.filters[:]; import_ding(); '
        'assert warnings.filters == before; warnings.warn("new")'
    )
    run = python('-c', code, PYTHONPATH=os.pathsep.join([str(tmp_path), ROOT]))
    assert run.returncode == 0 and 'old' not in run.stderr and 'new' in run.stderr, run.stderr


@pytest.mark.parametrize('given, found', [('', '10000'), ('5', '5')])
def test_idle_threads_spin_for_a_short_time_unless_the_user_says_otherwise(given, found):
    code = f"""
import os
os.environ.pop('GOMP_SPINCOUNT', None)
os.environ.update({dict(GOMP_SPINCOUNT=given) if given else dict()!r})
import ding_common
with ding_common.importing():
    import torch
print(os.environ['GOMP_SPINCOUNT'])
"""
    run = python('-c', code)
    assert (run.returncode, run.stdout) == (0, f'{found}\n'), run.stderr


def test_common_parts_import_no_torch():
    """Otherwise variables that ``importing`` sets came too late."""
    assert python('-c', 'import sys, ding_common; assert "torch" not in sys.modules').returncode == 0


@pytest.mark.parametrize('encoding', ['latin-1', 'gbk', 'ascii'])
def test_text_that_the_screen_has_no_characters_for_is_escaped(encoding):
    code = 'from ding_common import importing\nwith importing():\n    pass\nprint("\\u4f60 \\xe9 \\ud800")'
    run = python('-c', code, PYTHONIOENCODING=encoding, encoding=encoding)
    shown = '\u4f60 \xe9 \ud800'.encode(encoding, 'backslashreplace').decode(encoding)
    assert run.returncode == 0 and run.stdout == f'{shown}\n' and r'\ud800' in shown, run.stderr
