"""Attention that returns its normalisers, by torch's kernels for CPUs and for GPUs."""
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ding_grpo.model.read.attention import Options, Seen, added, flash, flash_backward, is_fast, kept_type, plain
from tests.simulated_gpu import SimulatedGPU

CASES = [(5, 5, True, False), (37, 21, False, False), (37, 21, False, True), (1, 9, False, True)]


def inputs(queries, keys, dtype=torch.double):
    q, k, v, grad = (torch.randn(3, 2, n, 16, dtype=dtype) for n in (queries, keys, keys, queries))
    seen = torch.rand(3, 1, 1, keys) < 0.7
    seen[..., 0] = True
    return q, k, v, grad, seen


@pytest.mark.parametrize('device', ['cpu', 'cuda'])
@pytest.mark.parametrize('queries, keys, causal, masked', CASES)
def test_equals_plain_attention(queries, keys, causal, masked, device):
    torch.manual_seed(0)
    q, k, v, grad, seen = inputs(queries, keys)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    shown = seen if masked else torch.ones(queries, keys, dtype=torch.bool).tril() if causal else None
    wanted, lse = plain(q, k, v, None if shown is None else Seen(shown), Options(0.3))
    gradients = torch.autograd.grad(wanted, (q, k, v), grad)
    with SimulatedGPU(), torch.no_grad():
        q, k, v, grad, seen = (x.to(device) for x in (q, k, v, grad, seen))
        mask = added(Seen(seen), q) if masked else None
        found, of_found = flash(q, k, v, 0.3, mask, causal)
        backward = [x.cpu() for x in flash_backward(grad, q, k, v, found, of_found, 0.3, mask, causal)]
        found, of_found = found.cpu(), of_found.cpu()
    assert torch.allclose(found, wanted, atol=1e-12) and torch.allclose(of_found, lse, atol=1e-12)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(backward, gradients))


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize('queries, keys, causal, masked', CASES)
def test_the_calls_fit_torchs_kernel_for_gpus(queries, keys, causal, masked, dtype, multiplies_bfloat16):
    """Tensors without contents, for which torch checks arguments and finds shapes and types, need no GPU."""
    multiplies_bfloat16('cuda')
    with FakeTensorMode(), torch.device('cuda'):
        q, k, v, grad, seen = inputs(queries, keys, dtype)
        mask = added(Seen(seen), q) if masked else None
        assert is_fast(q, v, Options(0.3))
        out, lse = flash(q, k, v, 0.3, mask, causal)
        found = flash_backward(grad, q, k, v, out, lse, 0.3, mask, causal)
        assert out.shape == q.shape and lse.shape == q.shape[:3] and lse.dtype is torch.float32
        assert [x.shape for x in found] == [x.shape for x in (q, k, v)]
        assert {x.dtype for x in (out, *found)} == {dtype}


def test_what_no_kernel_can(multiplies_bfloat16):
    multiplies_bfloat16()  # as GPUs before Ampere
    q = torch.zeros(1, 2, 3, 16)
    assert is_fast(q, q, Options(1.0)) and not is_fast(q, q[..., :8], Options(1.0))
    assert not is_fast(q, q, Options(1.0, window=2)) and not is_fast(q, q, Options(1.0, softcap=30.0))
    with FakeTensorMode(), torch.device('cuda'):
        for size, dtype, fast in ((12, torch.float32, False), (16, torch.double, False), (16, torch.bfloat16, False),
                                  (16, torch.half, True)):
            q = torch.zeros(1, 2, 3, size, dtype=dtype)
            assert is_fast(q, q, Options(1.0)) is fast


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.half, torch.float32, torch.double], ids=str)
def test_a_processor_keeps_keys_in_float32_or_wider(dtype):
    assert kept_type(dtype, torch.device('cpu')) is (torch.double if dtype is torch.double else torch.float32)
    assert kept_type(dtype, torch.device('cuda')) is dtype
