"""Processes of torchrun that ask one server, which has the weights of all of them."""
import re

import pytest
from ding.utils import deep_merge_dicts

from ding_grpo.model import CausalLM
from ding_grpo.run.checkpoint import read_checkpoint
from tests.cases import long
from tests.pipelines.test_processes import THINK, Run
from tests.runs import distance, evaluated, metrics
from tests.shipped import load

pytestmark = pytest.mark.envtest
CONFIG, CHANGES, MODE = THINK


@pytest.fixture
def server(serve):
    config = load(CONFIG, **CHANGES)[0].policy.model.config
    return serve(CausalLM(config=dict(config, vocab_size=32)))


def run_of(server, folder, processes, **policy):
    engine = dict(type='vllm', url=server.url, folder=str(folder), patience=60.0)
    changes = deep_merge_dicts(CHANGES, dict(policy=dict(policy, collect=dict(engine=engine))))
    return Run(folder, f'p{processes}', CONFIG, changes, MODE, 3, processes, learning_rate=1e-3)


@pytest.mark.parametrize('policy', [dict(), long(dict(shard=True))], ids=str)
def test_two_make_the_run_of_one(server, tmp_path, policy):
    runs, loads = [], []
    for processes in (1, 2):
        before = server.loads
        runs.append(run_of(server, tmp_path, processes, **policy))
        assert len(re.findall('engine: it has the weights', runs[-1].finish())) == 1  # one of them compares for all
        loads.append(server.loads - before)
    weights = [read_checkpoint(str(run.folder / 'ckpt/iteration_3.pth.tar'))['model'] for run in runs]
    assert distance(*weights) < 1e-6
    assert loads[0] == loads[1]  # each weights are given once
    assert all(m['sampler_gap_max'] < 1e-4 for m in metrics(runs[1].folder)) and evaluated(runs[1].folder) == [0, 3]
    assert not list(tmp_path.glob('ding_grpo_*'))


def test_two_end_when_weights_no_longer_arrive(server, tmp_path):
    server.faults.loads = 3  # two of the start, and those of the second update
    code, out = run_of(server, tmp_path, 2).end()
    assert code != 0 and 'old values of all of them' in out and 'Traceback' not in out
