"""Memory of the parts of an update."""
import pytest
import torch

from ding_common.processes.memory import MemoryMeter, peak_memory, resident_memory
from tests.collect.helper import make_collector
from tests.policies import make_policy

SIZE = 160  # MiB


def block():
    return torch.ones(SIZE * 2 ** 18)


def test_what_a_part_keeps():
    meter = MemoryMeter('cpu')
    with meter.part('before'):
        pass
    with meter.part('kept'):
        kept = block()
    with meter.part('after'):
        pass
    assert len(kept) and meter.most['kept'] - meter.most['before'] == pytest.approx(SIZE, abs=32)
    assert meter.most['after'] == pytest.approx(meter.most['kept'], abs=32)
    assert peak_memory() >= resident_memory() - 1 >= SIZE


def test_the_peak_and_the_memory_before_a_part_count():
    """The peak is 900 MiB, and rises to 950 in one part. The resident memory is 500 MiB, and 700 before the last."""
    resident, now = iter([500.] * 6 + [700., 300.]), [900.]
    meter = MemoryMeter('cpu', lambda: next(resident), lambda: now[0])
    for name, peak in (('a', 900.), ('b', 950.), ('c', 950.), ('frees', 950.)):
        with meter.part(name):
            now[0] = peak
    assert meter.most == dict(a=500., b=950., c=500., frees=700.)


def test_a_gpu_starts_anew_with_each_part(gpu):
    meter = MemoryMeter('cuda')
    for name, size in (('sampling', 3), ('scoring', 1), ('scoring', 2)):
        with meter.part(name):
            torch.empty(size * 2 ** 20, dtype=torch.uint8, device='cuda')
    assert meter.most == dict(sampling=3., scoring=2.)


def test_of_many_blocks_few_are_measured():
    """Ten of 1,000: a read opens a file, which takes tens of microseconds. A block holds its number in MiB."""
    found, reads, number = [], [], 0
    meter = MemoryMeter('cpu', lambda: reads.append(1) or float(number))
    for number in range(1, 1001):
        with meter.part('sampling'):
            pass
        found.append(meter.most['sampling'])
    assert found[:9] == [1, 2, 2, 4, 4, 4, 4, 8, 8] and len(reads) == 2 * 10


@pytest.mark.envtest
def test_an_update_has_the_memory_of_its_parts(think_answer, tmp_path):
    """A group collected later, or before this version, counts as it should: the largest, or not at all."""
    policy = make_policy(*think_answer)
    samples = make_collector(*think_answer, tmp_path, policy=policy).collect(n_sample=2)
    for part in ('sampling', 'scoring'):
        assert samples[0][f'memory_mib_{part}'] == samples[1][f'memory_mib_{part}'] > 50
    samples[1]['memory_mib_sampling'] = 1e6
    metrics = policy.learn_mode.forward(samples)
    assert metrics['memory_mib_sampling'] == 1e6 and metrics['memory_mib_updating'] > 50
    assert metrics['memory_mib_scoring'] == samples[0]['memory_mib_scoring']
    del samples[1]['memory_mib_scoring']
    assert 'memory_mib_scoring' not in policy.learn_mode.forward(samples)
