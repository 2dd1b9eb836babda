"""The core lives alone: a copy of the package without extras and instruments trains the same weights."""
import os
import shutil

import pytest

from tests.processes import ROOT, python
from tests.shipped import path_of

NAMES = 'think_answer_grpo', 'cartpole_grpo'
PROGRAM = """
import hashlib, sys
# without the finder of `pip install -e`: it finds the folders that were removed from the copy
sys.meta_path[:] = [f for f in sys.meta_path if not getattr(f, '__module__', '').startswith('__editable__')]
import ding_grpo, ding
from ding.entry import serial_pipeline_onpolicy
from ding_common import read_config_file

for name in sys.argv[1:]:
    main, create = read_config_file(name)
    main.exp_name, main.env.stop_value = 'run', 1e9
    trained = serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1 if 'cartpole' in name else 3)
    weights = trained._model.state_dict()
    print('FOUND', hashlib.sha256(b''.join(x.numpy().tobytes() for x in weights.values())).hexdigest())
print('LOADED', len([m for m in sys.modules if m.startswith(('ding_grpo.extras.', 'ding_grpo.instruments.'))]))
"""


def trained(folder, root):
    run = python('-c', PROGRAM, *map(path_of, NAMES), folder=folder, PYTHONPATH=str(root), OMP_NUM_THREADS='1')
    found = [line.split()[1] for line in run.stdout.splitlines() if line.startswith(('FOUND', 'LOADED'))]
    assert len(found) == len(NAMES) + 1, run.stdout[-2000:] + run.stderr[-2000:]
    return found[:-1], int(found[-1])


@pytest.mark.envtest
def test_trains_the_same_without_extras_and_instruments(tmp_path):
    copy = tmp_path / 'copy'
    for package in ('ding_common', 'ding_grpo', 'dizoo_llm'):
        shutil.copytree(os.path.join(ROOT, package), copy / package, ignore=shutil.ignore_patterns('__pycache__'))
    for folder in ('extras', 'instruments'):
        shutil.rmtree(copy / 'ding_grpo' / folder)
    found = {}
    for kind, root in (('whole', ROOT), ('alone', copy)):
        os.makedirs(tmp_path / kind)
        found[kind], loaded = trained(tmp_path / kind, root)
        assert (loaded > 0) == (kind == 'whole')
    assert found['whole'] == found['alone']
