import os
import subprocess
import sys

import pytest

from tests.cases import long

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))


@pytest.mark.unittest
@pytest.mark.parametrize('module', ['ding_grpo, ding', long('dizoo_llm')])
def test_importing_prints_nothing_and_freezes_nothing(module):
    # DI-engine and old gym print some ten lines when they are imported plainly
    code = f'import gc; import {module}; assert gc.isenabled() and gc.get_freeze_count() == 0'
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, '', '')


@pytest.mark.unittest
def test_a_warning_is_dropped_also_after_gym_has_asked_for_it(tmp_path):
    # On Python 3.12 that is werkzeug's and DI-engine's: gym puts a filter for deprecations before all others.
    (tmp_path / 'ding').mkdir()
    (tmp_path / 'ding' / '__init__.py').write_text('')
    (tmp_path / 'ding' / 'entry.py').write_text(
        'import warnings\n'
        'warnings.simplefilter("once", DeprecationWarning)\n'
        'warnings.warn("old", DeprecationWarning)\n'
    )
    code = (
        'import warnings; from ding_common import import_ding; before = warnings.filters[:]; import_ding(); '
        'assert warnings.filters == before; warnings.warn("new")'
    )
    run = subprocess.run(
        [sys.executable, '-c', code],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join([str(tmp_path), ROOT])),
        capture_output=True,
        text=True,
        timeout=120
    )
    assert run.returncode == 0 and 'old' not in run.stderr and 'new' in run.stderr, run.stderr


@pytest.mark.unittest
@pytest.mark.parametrize('given, found', [(None, '10000'), ('5', '5')])
def test_idle_threads_spin_for_a_short_time_unless_the_user_says_otherwise(given, found):
    variables = {name: value for name, value in os.environ.items() if name != 'GOMP_SPINCOUNT'}
    if given is not None:
        variables['GOMP_SPINCOUNT'] = given
    code = 'import os, sys, ding_common; ' \
        'exec("with ding_common.importing(): import torch"); print(os.environ["GOMP_SPINCOUNT"])'
    run = subprocess.run([sys.executable, '-c', code], env=variables, capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout) == (0, f'{found}\n'), run.stderr


@pytest.mark.unittest
def test_common_parts_import_no_torch():
    """Otherwise variables that ``importing`` sets came too late."""
    code = 'import sys, ding_common; assert "torch" not in sys.modules'
    assert subprocess.run([sys.executable, '-c', code], timeout=120).returncode == 0


@pytest.mark.unittest
@pytest.mark.parametrize('encoding', ['latin-1', 'gbk', 'ascii'])
def test_text_that_the_screen_has_no_characters_for_is_escaped(encoding):
    code = 'from ding_common import importing\nwith importing():\n    pass\nprint("\\u4f60 \\xe9 \\ud800")'
    run = subprocess.run(
        [sys.executable, '-c', code],
        env=dict(os.environ, PYTHONIOENCODING=encoding, PYTHONPATH=ROOT),
        capture_output=True,
        timeout=120
    )
    assert run.returncode == 0, run.stderr
    shown = '\u4f60 \xe9 \ud800'.encode(encoding, 'backslashreplace')
    assert run.stdout == shown + b'\n' and b'\\ud800' in shown
