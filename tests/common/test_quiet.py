import os

import pytest

from tests.processes import ROOT, python


@pytest.mark.algotest
def test_importing_the_tasks_prints_nothing_and_freezes_nothing():
    """Of the core, ``compat/test_registration.py`` says so."""
    run = python('-c', 'import gc; import dizoo_llm; assert gc.isenabled() and gc.get_freeze_count() == 0')
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


def test_common_parts_import_no_torch_so_that_variables_are_set_before_it():
    """Idle threads of torch spin for a short time, unless the user says otherwise."""
    code = """
import os, sys, ding_common
assert 'torch' not in sys.modules
os.environ.pop('GOMP_SPINCOUNT', None)
for value in ('10000', '5'):
    with ding_common.importing():
        assert os.environ['GOMP_SPINCOUNT'] == value
    os.environ['GOMP_SPINCOUNT'] = '5'
"""
    run = python('-c', code)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize('encoding', ['latin-1', 'gbk', 'ascii'])
def test_text_that_the_screen_has_no_characters_for_is_escaped(encoding):
    code = 'from ding_common import importing\nwith importing():\n    pass\nprint("\\u4f60 \\xe9 \\ud800")'
    run = python('-c', code, PYTHONIOENCODING=encoding, encoding=encoding)
    shown = '\u4f60 \xe9 \ud800'.encode(encoding, 'backslashreplace').decode(encoding)
    assert run.returncode == 0 and run.stdout == f'{shown}\n' and r'\ud800' in shown, run.stderr
