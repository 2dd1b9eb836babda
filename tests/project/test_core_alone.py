"""The core lives alone: a copy of the package without extras and instruments trains the same weights."""
import os
import shutil

import pytest

from tests.processes import ROOT, Process, python, run_code
from tests.shipped import small, write

NAMES = 'think_answer_grpo', 'cartpole_grpo'
PROGRAM = f"""
import hashlib, sys
# without the finder of `pip install -e`: it finds the folders that were removed from the copy
sys.meta_path[:] = [f for f in sys.meta_path if not getattr(f, '__module__', '').startswith('__editable__')]
import ding_grpo, ding
from ding.entry import serial_pipeline_onpolicy
from ding_common import read_config_file

for name in {NAMES}:
    trained = serial_pipeline_onpolicy(read_config_file(f'../{{name}}.py'), seed=0, max_train_iter=2)
    weights = trained._model.state_dict()
    print('FOUND', hashlib.sha256(b''.join(x.numpy().tobytes() for x in weights.values())).hexdigest())
print('LOADED', len([m for m in sys.modules if m.startswith(('ding_grpo.extras.', 'ding_grpo.instruments.'))]))
"""


def found_in(out):
    """The hashes of weights that are printed, and the number of modules of extras and instruments."""
    found = [line.split()[1] for line in out.splitlines() if line.startswith(('FOUND', 'LOADED'))]
    assert len(found) == len(NAMES) + 1, out[-4000:]
    return found[:-1], int(found[-1])


@pytest.mark.envtest
def test_trains_the_same_without_extras_and_instruments(tmp_path):
    copy = tmp_path / 'copy'
    for package in ('ding_common', 'ding_grpo', 'dizoo_llm'):
        shutil.copytree(os.path.join(ROOT, package), copy / package, ignore=shutil.ignore_patterns('__pycache__'))
    for folder in ('extras', 'instruments'):
        shutil.rmtree(copy / 'ding_grpo' / folder)
    for name in NAMES:
        write(tmp_path / f'{name}.py', small(name))
    (tmp_path / 'alone').mkdir()
    run = python('-c', PROGRAM, folder=tmp_path / 'alone', PYTHONPATH=str(copy), OMP_NUM_THREADS='1')
    alone, none = found_in(run.stdout + run.stderr)
    whole, some = found_in(Process(run_code, PROGRAM, tmp_path / 'whole').end(300)[1])
    assert whole == alone and some > none == 0
