"""Memory of the parts of an update."""
import pytest
import torch

from ding_common.processes import memory
from ding_common.processes.memory import MemoryMeter, peak_memory
from tests.collect.helper import make_collector
from tests.policy.helper import make_policy

SIZE = 160  # MiB


def block():
    return torch.ones(SIZE * 2 ** 18)


@pytest.mark.unittest
class TestMeter:

    def test_what_a_part_keeps(self):
        meter = MemoryMeter('cpu')
        with meter.part('before'):
            pass
        with meter.part('kept'):
            kept = block()
        with meter.part('after'):
            pass
        assert len(kept) and meter.most['kept'] - meter.most['before'] == pytest.approx(SIZE, abs=32)
        assert meter.most['after'] == pytest.approx(meter.most['kept'], abs=32)

    def test_what_a_part_frees_again_counts_where_it_raises_the_peak(self, monkeypatch):
        """The peak is 900 MiB, and rises to 950 in one part. The resident memory at all borders is 500 MiB."""
        now = [900.]
        monkeypatch.setattr(memory, 'resident_memory', lambda: 500.)
        monkeypatch.setattr(memory, 'peak_memory', lambda: now[0])
        meter = MemoryMeter('cpu')
        for name, peak in (('a', 900.), ('b', 950.), ('c', 950.)):
            with meter.part(name):
                now[0] = peak
        assert meter.most == dict(a=500., b=950., c=500.)

    def test_the_resident_memory_before_a_part_counts_too(self, monkeypatch):
        found = iter([700., 300.])
        monkeypatch.setattr(memory, 'resident_memory', lambda: next(found))
        meter = MemoryMeter('cpu')
        with meter.part('frees'):
            pass
        assert meter.most == dict(frees=700.)

    def test_a_gpu_starts_anew_with_each_part(self, monkeypatch):
        told, held = [], iter([3 * 2 ** 20, 2 ** 20, 2 ** 21])
        monkeypatch.setattr(torch.cuda, 'reset_peak_memory_stats', lambda device: told.append(device))
        monkeypatch.setattr(torch.cuda, 'max_memory_allocated', lambda device: next(held))
        meter = MemoryMeter('cuda:1')
        for name in ('sampling', 'scoring', 'scoring'):
            with meter.part(name):
                assert told[-1] == torch.device('cuda:1')
        assert len(told) == 3 and meter.most == dict(sampling=3., scoring=2.)

    def test_of_many_blocks_few_are_measured(self, monkeypatch):
        """Blocks 1, 2, 4, 8 of nine; a block holds its number in MiB."""
        monkeypatch.setattr(memory, 'resident_memory', lambda: float(number))
        meter, found = MemoryMeter('cpu'), []
        for number in range(1, 10):
            with meter.part('sampling'):
                pass
            found.append(meter.most['sampling'])
        assert found == [1, 2, 2, 4, 4, 4, 4, 8, 8]

    def test_an_error_passes_through(self):
        with pytest.raises(ZeroDivisionError), MemoryMeter('cpu').part('sampling'):
            1 / 0

    def test_reads_the_memory_twice_in_few_of_many_blocks(self, monkeypatch):
        """A read opens a file, which takes tens of microseconds. Ten of 1,000 blocks are measured."""
        reads = []
        monkeypatch.setattr(memory, 'resident_memory', lambda: reads.append(1) or 0.)
        meter = MemoryMeter('cpu')
        for _ in range(1000):
            with meter.part('sampling'):
                pass
        assert len(reads) == 2 * 10

    def test_the_peak_is_that_of_the_process(self):
        kept = block()
        assert len(kept) and peak_memory() >= memory.resident_memory() - 1 >= SIZE


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
