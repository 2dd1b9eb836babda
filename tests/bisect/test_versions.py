"""
Runs of two environments: BISECT_PYTHON=other/bin/python python -m pytest tests/bisect/test_versions.py -m algotest,
where the other Python has another version of torch or transformers. Two minutes.
"""
import os
import subprocess
import sys

import pytest

from tests.processes import ROOT

from .helper import RUN, asked, bisect, first_of, lines, verify

PYTHON = os.environ.get('BISECT_PYTHON', '')
pytestmark = [
    pytest.mark.algotest,
    pytest.mark.skipif(not os.path.exists(PYTHON), reason='BISECT_PYTHON names no Python of another environment')
]
PACKAGES = ('torch', 'transformers')
VERSIONS = f'from importlib.metadata import version; print(*map(version, {PACKAGES}))'


def ran(python, code):
    """What a program prints in an environment."""
    variables = dict(os.environ, PYTHONPATH=ROOT, OMP_NUM_THREADS='1')
    return subprocess.run([python, '-c', code], env=variables, capture_output=True, text=True, check=True).stdout


def test_the_versions_of_two_environments(own_folder):
    """They are named, and what differs is as small as rounding. An update of the other one cannot be made again."""
    versions = [ran(python, VERSIONS).split() for python in (sys.executable, PYTHON)]
    pairs = {name: (x, y) for name, x, y in zip(PACKAGES, *versions) if x != y}
    assert pairs, versions
    for python, name in ((sys.executable, 'a'), (PYTHON, 'b')):
        ran(python, RUN.format(threads=1, name=name, several=False))
    status, out = asked(bisect, 'a', 'b')
    named = dict(line[len('machine '):].split(': ', 1) for line in out.splitlines() if line.startswith('machine '))
    assert {name: tuple(named[name].split(' / ')) for name in PACKAGES if name in named} == pairs
    if status == 1:
        assert first_of(out).split(': ')[0] in ('update 0, sampled', 'update 0, read', 'update 0, gradients'), out
        assert 'as small as rounding' in out and f"Left as a cause, and not possible here: {', '.join(named)}" in out
        assert 'under the settings of RUN_A: as RUN_A has recorded it' in out
    assert asked(bisect, 'a', 'b', '--tolerance', 1e-4)[0] == 0
    status, out = asked(verify, 'b', '--tolerance', 1e-4)
    assert status == 0 and all(f'{name} {x}, but {y}' in out for name, (x, y) in pairs.items())
    assert lines('b')[0]['machine']['torch'] == versions[1][0].partition('+')[0]
