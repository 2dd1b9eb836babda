import numpy as np
import pytest
import torch

from ding_grpo.rl_utils.on_device import PINNED_FROM, on_device

SMALL, LARGE = PINNED_FROM // 8, PINNED_FROM // 8 + 1  # of int64


@pytest.mark.parametrize(
    'numbers, expected', [
        ([3, 1], torch.tensor([3, 1])),
        (np.array([[True], [False]]), torch.tensor([[True], [False]])),
        (np.array([0.1, 0.2]), torch.tensor([0.1, 0.2], dtype=torch.double)),
        (torch.tensor([1.5]), torch.tensor([1.5])),
        ([], torch.tensor([])),
    ],
    ids=str
)
def test_the_same_numbers_everywhere(numbers, expected, gpu):
    for device in ('cpu', 'cuda', torch.device('cuda', 0)):
        found = on_device(numbers, device)
        assert found.device.type == torch.device(device).type and found.dtype is expected.dtype
        assert torch.equal(found.cpu(), expected)


def test_without_a_gpu_nothing_is_copied():
    x = torch.arange(LARGE)
    assert on_device(x, 'cpu') is x
    assert on_device(x.numpy(), torch.device('cpu')).data_ptr() == x.data_ptr()


@pytest.mark.parametrize('number, kind', [(1, 'pageable'), (SMALL, 'pageable'), (LARGE, 'pinned')])
def test_a_gpu_gets_large_ones_from_pinned_memory_and_nobody_waits(number, kind, gpu):
    x = torch.arange(number)
    gpu.counts.reset()
    there = on_device(x, 'cuda')
    assert gpu.counts.copies == {kind: 1} and gpu.counts.copied == {kind: 8 * number} and not gpu.counts.waits
    gpu.counts.reset()
    assert on_device(there, 'cuda').is_cuda and not gpu.counts.copies  # it is there
