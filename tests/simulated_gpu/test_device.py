"""The simulated GPU itself: where tensors lie, what is refused as on a GPU, and what is counted."""
import copy

import pytest
import torch
from ding.entry import serial_pipeline_onpolicy
from torch.nn.functional import scaled_dot_product_attention

from tests.cases import long
from tests.shipped import small
from tests.simulated_gpu import SimulatedGPU

CUDA, CPU = torch.device('cuda', 0), torch.device('cpu')


class TestCopies:

    def test_their_kinds_and_bytes(self, gpu):
        there, few = torch.zeros(4, 2, device='cuda'), torch.ones(3)
        gpu.counts.reset()
        few.pin_memory().to('cuda', non_blocking=True)
        few.cuda(non_blocking=True)
        assert gpu.counts.copies == dict(pinned=1, pageable=1) and gpu.counts.copied == dict(pinned=12, pageable=12)
        assert not gpu.counts.launches
        few.to('cuda')
        torch.tensor([1, 2], device='cuda')
        there.new_tensor(1)
        there[torch.tensor([0, 3])]  # an index of the host
        there[:, 0].copy_(torch.ones(4))
        assert gpu.counts.copies['blocking'] == 5 and gpu.counts.copied['blocking'] == 12 + 16 + 4 + 16 + 16
        assert gpu.counts.launches == dict(index=1) and not gpu.counts.waits


class TestPlaces:

    @pytest.mark.parametrize(
        'make', [
            lambda: torch.zeros(3, device='cuda'),
            lambda: torch.tensor([1.0, 2.0], device=CUDA),
            lambda: torch.ones(3).cuda(),
            lambda: torch.ones(3).to('cuda', torch.double),
            lambda: torch.ones(3).to(torch.zeros(1, device='cuda')),
            lambda: torch.ones(3, 2, device='cuda')[1:].t() + 1,
            lambda: torch.ones(3, device='cuda').new_zeros(2),
            lambda: torch.ones(3, device='cuda').new_tensor([2.0]),
            lambda: copy.deepcopy(torch.ones(3, device='cuda')),
            lambda: torch.nn.Linear(2, 2).to('cuda').weight,
            lambda: torch.nn.Linear(2, 2, device='cuda')(torch.ones(1, 2, device='cuda')),
            lambda: scaled_dot_product_attention(*[torch.ones(1, 2, 3, 4).cuda()] * 3, is_causal=True),
        ]
    )
    def test_of_the_gpu(self, make, gpu):
        x = make()
        assert x.device == CUDA and x.is_cuda and not x.is_cpu and torch.cat([x, x]).device == CUDA
        assert x.cpu().device == CPU and not x.cpu().is_cuda and x.to('cpu').to('cuda').device == CUDA

    def test_without_numbers(self, gpu):
        """A loader asks by such a tensor whether it makes a model without numbers, and leaves buffers unset if not."""
        with torch.device('meta'):
            assert torch.tensor([]).device.type == torch.as_tensor([1.0]).device.type == 'meta'

    def test_gradients_in_functions_of_ones_own(self, gpu):
        places = []

        class Own(torch.autograd.Function):

            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                places.append((grad.device, torch.zeros(2).device, torch.zeros(2, device=grad.device).device))
                return grad

        x = torch.ones(3, device='cuda', requires_grad=True)
        Own.apply(x).sum().backward()
        grad, = torch.autograd.grad(Own.apply(x).sum(), x)
        assert places == [(CUDA, CPU, CUDA)] * 2 and x.grad.device == grad.device == CUDA

    def test_by_default_and_afterwards(self):
        with SimulatedGPU():
            assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.zeros(3).device == CPU
            with torch.device('cuda'):
                assert torch.zeros(3).device == CUDA and torch.zeros(3, device='cpu').device == CPU
        assert torch.zeros(1).device == CPU and not getattr(torch.zeros(1).untyped_storage(), 'of_gpu', False)


class TestRefused:

    def test_two_devices(self, gpu):
        x = torch.ones(3, device='cuda')
        for call in (lambda: x + torch.ones(3), lambda: torch.cat([torch.ones(3), x]), lambda: torch.ones(3) @ x):
            with pytest.raises(RuntimeError, match='Expected all tensors to be on the same device'):
                call()
        assert (x + torch.tensor(2.0)).tolist() == [3.0] * 3  # numbers may lie on the CPU

    def test_an_array_and_a_wait_while_a_graph_is_recorded(self, gpu):
        x = torch.ones(3, device='cuda')
        with pytest.raises(TypeError, match='cpu'):
            x.numpy()
        with pytest.raises(RuntimeError, match='capturing'), torch.cuda.graph(torch.cuda.CUDAGraph()):
            x.nonzero()


class TestCounts:

    @pytest.mark.parametrize(
        'call, launches, waits', [
            (lambda x: x + 1, 1, 0),
            (lambda x: x[1:].view(-1).t(), 0, 0),
            (lambda x: torch.empty(3, device='cuda'), 0, 0),
            (lambda x: x.add_(1).mul_(2), 2, 0),
            (lambda x: x.sum().item(), 1, 1),
            (lambda x: x.tolist(), 0, 1),
            (lambda x: bool(x[0]), 0, 1),
            (lambda x: x[x > 0], 2, 1),
            (lambda x: x.cpu(), 0, 1),
            (lambda x: x.to('cpu', non_blocking=True), 0, 0),
            (lambda x: torch.ones(3) + 1, 0, 0),
        ]
    )
    def test_operations(self, call, launches, waits, gpu):
        x = torch.ones(3, device='cuda')
        gpu.counts.reset()
        call(x)
        found = gpu.counts.launches.total() - gpu.counts.launches['_to_copy']
        assert (found, gpu.counts.waits.total()) == (launches, waits)

    def test_memory(self, gpu):
        x = torch.ones(256, device='cuda')
        y = x.view(2, 128)
        torch.ones(512, device='cuda').sum()
        assert gpu.counts.live == torch.cuda.memory_allocated() == 1024 and gpu.counts.peak == 1024 + 2048 + 4
        del x
        assert gpu.counts.live == 1024
        del y
        assert gpu.counts.live == 0


@pytest.mark.parametrize(
    'name', ['think_answer_gae', 'cartpole_grpo', *map(long, ['think_answer_grpo', 'guess_grpo', 'pendulum_grpo'])]
)
def test_runs(name, gpu, own_folder):
    """Two updates, in which no tensor lies where it should not, and no operation is one that a GPU refuses."""
    main, create = small(name)
    main.policy.cuda = True
    policy = serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=2)
    assert {p.device for p in policy.learn_mode.get_attribute('model').parameters()} == {CUDA}
