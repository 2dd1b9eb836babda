"""What the processes of a run tell one another, and which GPU each of them takes."""
import pickle
import re
from contextlib import ExitStack, nullcontext
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore

from ding_common import ConfigError, parallel
from ding_common.processes.packing import pack, unpack
from ding_grpo.policy import GRPOPolicy
from tests.processes import meet, one_of
from tests.simulated_gpu import SimulatedGPU

SAME = r'processes 0 and 1 of this run would use the same GPU \(simulated\)'
GONE = r'process {}: (another process|process {} \(pid \d+\)) of this run has exited'


@pytest.mark.algotest
def test_an_error_within_a_call_of_torch_is_its_own(tmp_path):
    (_, first), (_, second) = meet(
        tmp_path, """
x = torch.ones(3)
parallel.broadcast([x.to_sparse() if parallel.rank() == 1 else x])
parallel.all_gather(1)
"""
    )
    last = [out.strip().splitlines() for out in (first, second)]
    assert 'PeerError' in last[0][-1] and re.search(GONE.format(0, 1), last[0][-1])
    assert 'PeerError' not in second and "NotImplementedError: Could not run 'c10d::broadcast_'" in second


def test_one_that_does_not_answer(tmp_path):
    (_, first), (_, second) = meet(
        tmp_path, """
import os, time
from datetime import timedelta
parallel.end()
parallel.TIMEOUT = timedelta(seconds=2)
os.environ['MASTER_PORT'] = str(int(os.environ['MASTER_PORT']) + 1)
parallel.start(False)
time.sleep(5 * parallel.rank())
parallel.all_gather(1)
"""
    )
    assert 'process 0: another process of this run has not responded for 0.0333333 minutes' in first
    assert re.search(GONE.format(1, 0), second)


def test_machines_with_unequal_numbers_of_processes(tmp_path):
    for _, out in meet(tmp_path, """
import os
assert parallel.processes_per_machine() == 2
os.environ['LOCAL_WORLD_SIZE'] = str(1 + parallel.rank())
parallel.processes_per_machine()
"""):
        assert "ConfigError: policy.shard = 'machine': machines run 1 and 2 processes; must be the same" in out


def test_other_tensors_than_the_others(tmp_path):
    # gloo adds up what is there, hangs, or aborts
    outs = meet(
        tmp_path, """
me, one = parallel.rank(), torch.ones(1)
for call in (parallel.broadcast, parallel.all_reduce):
    for tensors in ([one, torch.ones(3 + me)], [one, one.double() if me else one], [one] * (1 + me), [one]):
        try:
            call(tensors)
            print('done')
        except parallel.PeerError as error:
            print(error.message)
"""
    )
    kinds = (
        'torch.float32 (3,) and torch.float32 (4,)', 'torch.float32 (1,) and torch.float64 (1,)', '1 and 2 tensors'
    )
    advice = 'All processes need the same config, code and models.'
    told = [*(f'processes 0 and 1 of this run differ: they have {kind}. {advice}' for kind in kinds), 'done']
    assert [(code, out.splitlines()) for code, out in outs] == [(0, told * 2)] * 2


def test_no_address_to_meet_at(monkeypatch):
    monkeypatch.setenv('WORLD_SIZE', '2')
    for name in ('RANK', 'MASTER_ADDR', 'MASTER_PORT'):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match='policy.multi_gpu = True: .*RANK expected.*start them with torchrun'):
        parallel.start(False)


# ---------------------- What arrives from another process is data: no class or function that it names is looked up.


def test_every_process_gets_what_each_has_and_what_the_first_has(tmp_path):
    outs = meet(
        tmp_path, """
import torch.distributed as dist
from tests.same import same

def loads(*args):
    raise AssertionError('unpickled')

dist.distributed_c10d._unpickler = loads  # of torch's own exchange of objects

def of(rank):
    torch.manual_seed(rank)
    tensors = [torch.randn(3 + rank, 4).T, torch.zeros(0, 3), torch.ones(2, dtype=torch.bool), torch.tensor(1j)]
    numbers = (rank, 0.1, -0.0, float('inf'), None, True, 'é' * 1000 * rank, 2 ** 70)
    return dict(tensors=tensors, numbers=numbers, by={1: torch.randn(4, 6).T.bfloat16(), (2, 'a'): [b'x']})

same(parallel.all_gather(of(parallel.rank())), [of(0), of(1)])
same(parallel.broadcast_object(of(0) if parallel.rank() == 0 else 'nothing'), of(0))
"""
    )
    assert [code for code, _ in outs] == [0, 0], outs


def test_code_in_a_message_is_not_run(tmp_path):
    mark = tmp_path / 'mark'

    class Runs:

        def __reduce__(self):
            return open, (str(mark), 'w')

    for data in (pickle.dumps([Runs()]), pickle.dumps(Runs(), protocol=0)):
        with pytest.raises(pickle.UnpicklingError, match='processes exchange tensors and plain objects only'):
            unpack(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    assert not mark.exists()


@pytest.mark.parametrize('thing', [np.float64(1), ValueError('a'), print, Fraction(1, 2)], ids=repr)
def test_anything_else_is_refused_where_it_is_sent(thing):
    with pytest.raises(TypeError, match='processes exchange tensors and plain objects, not '):
        pack(dict(a=[thing]))


# ---------------------------------------------------------------------------------------------------------------- GPUs


@pytest.fixture
def machine(monkeypatch):
    """Says how many GPUs a process sees, and which process it is."""

    def make(gpus, rank, local_rank, processes):
        for name, value in dict(RANK=rank, LOCAL_RANK=local_rank, LOCAL_WORLD_SIZE=processes, WORLD_SIZE=8).items():
            monkeypatch.setenv(name, str(value))
        return stack.enter_context(SimulatedGPU(gpus))

    with ExitStack() as stack:
        yield make


@pytest.mark.parametrize(
    'gpus, rank, local_rank, processes, found',
    [
        (4, 5, 1, 4, 1),
        (4, 3, 3, 4, 3),
        (8, 6, 2, 4, 2),
        (1, 5, 1, 4, 0),  # a launcher has given each process one
    ]
)
def test_the_gpu_of_a_process(machine, gpus, rank, local_rank, processes, found):
    machine(gpus, rank, local_rank, processes)
    assert parallel.gpu() == found


@pytest.mark.parametrize('local_rank', [0, 3])
def test_fewer_gpus_than_processes(machine, local_rank):
    machine(2, local_rank, local_rank, 4)
    with pytest.raises(ConfigError, match='policy.cuda = True: 4 processes run on this machine, which has 2 GPUs;'):
        parallel.start(True)


def test_two_processes_that_see_the_same_gpu(machine, monkeypatch):
    """NCCL needs a GPU. In the group in its place, each process has what this one has."""
    gpu, init = machine(4, 1, 1, 2), torch.distributed.init_process_group
    for processes, told in ((1, nullcontext()), (3, pytest.raises(ConfigError, match=SAME))):
        join = partial(init, 'fake', rank=0, world_size=processes, store=FakeStore())
        monkeypatch.setattr(torch.distributed, 'init_process_group', lambda *args, **kwargs: join())
        try:
            with told:
                parallel.start(True)
        finally:
            parallel.end()
        assert gpu.current == 1


def test_batches_go_where_the_model_is(machine):
    # DI-engine's device is of RANK, the model's of LOCAL_RANK: on a second machine they were two
    machine(4, 5, 3, 4)
    cfg = GRPOPolicy.default_config()
    cfg.cuda = cfg.multi_gpu = True
    cfg.model = dict(type='vac', obs_shape=4, action_shape=2)
    with one_of(8, rank=5):
        assert GRPOPolicy(cfg).device == 'cuda:0'
