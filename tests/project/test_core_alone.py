"""The core lives alone: a copy of the package without extras and instruments trains the same weights."""
import os
import shutil

import pytest

from tests.processes import ROOT, python
from tests.shipped import path_of

PROGRAM = """
import hashlib, sys
name, updates = sys.argv[1], int(sys.argv[2])
# without the finder of `pip install -e`: it finds the folders that were removed from the copy
sys.meta_path[:] = [f for f in sys.meta_path if not getattr(f, '__module__', '').startswith('__editable__')]
import ding_grpo, ding
from ding.entry import serial_pipeline_onpolicy
from ding_common import read_config_file

main, create = read_config_file(name)
main.exp_name, main.env.stop_value = 'run', 1e9
trained = serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=updates)
loaded = [m for m in sys.modules if m.startswith(('ding_grpo.extras.', 'ding_grpo.instruments.'))]
weights = trained._model.state_dict()
print('FOUND', len(loaded), hashlib.sha256(b''.join(x.numpy().tobytes() for x in weights.values())).hexdigest())
"""


def trained(folder, root, name, updates):
    run = python('-c', PROGRAM, path_of(name), updates, folder=folder, PYTHONPATH=str(root), OMP_NUM_THREADS='1')
    found = [line.split() for line in run.stdout.splitlines() if line.startswith('FOUND')]
    assert len(found) == 1, run.stdout[-2000:] + run.stderr[-2000:]
    return int(found[0][1]), found[0][2]


@pytest.mark.envtest
@pytest.mark.parametrize('name, updates', [('think_answer_grpo', 3), ('cartpole_grpo', 1)])
def test_trains_the_same_without_extras_and_instruments(tmp_path, name, updates):
    copy = tmp_path / 'copy'
    for package in ('ding_common', 'ding_grpo', 'dizoo_llm'):
        shutil.copytree(os.path.join(ROOT, package), copy / package, ignore=shutil.ignore_patterns('__pycache__'))
    for folder in ('extras', 'instruments'):
        shutil.rmtree(copy / 'ding_grpo' / folder)
    found = {}
    for kind, root in (('whole', ROOT), ('alone', copy)):
        os.makedirs(tmp_path / kind)
        found[kind] = trained(tmp_path / kind, root, name, updates)
    assert found['whole'][0] > 0 and found['alone'][0] == 0 and found['whole'][1] == found['alone'][1]
