import copy
import runpy

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from ding_grpo.model.fast_linear import FastConv1D, FastLinear, make_fast
from ding_grpo.rl_utils.log_probs import matrix_product

ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, '_linear_pointwise')


@pytest.mark.parametrize('onednn', [True, False])
@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize('rows', [1, 700])
@pytest.mark.parametrize('kind', ['linear', 'conv1d'])
def test_is_the_same_layer(kind, rows, bias, onednn, monkeypatch):
    if onednn and not ONEDNN:
        pytest.skip('this build of torch has no oneDNN')
    monkeypatch.setattr(matrix_product, 'pays', lambda a, b: onednn)
    torch.manual_seed(0)
    layer = nn.Linear(96, 128, bias=bias) if kind == 'linear' else Conv1D(128, 96)
    fast = nn.Sequential(copy.deepcopy(layer))
    make_fast(fast)
    assert type(fast[0]) is (FastLinear if kind == 'linear' else FastConv1D)
    assert list(fast.state_dict()) == [f'0.{name}' for name in layer.state_dict()]
    x = torch.randn(2, rows, 96, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    weight = torch.randn(2, rows, 128)
    (layer(x) * weight).sum().backward()
    (fast(y) * weight).sum().backward()
    assert torch.allclose(layer(x), fast(y), atol=1e-5) and torch.allclose(x.grad, y.grad, atol=1e-5)
    for a, b in zip(layer.parameters(), fast.parameters()):
        assert torch.allclose(a.grad, b.grad, atol=1e-3)


@pytest.mark.parametrize('capability', ['AVX2', 'AVX512'])
def test_onednn_is_not_used_with_avx2_alone(capability, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, 'get_cpu_capability', lambda: capability)
    pays = runpy.run_path(matrix_product.__file__)['pays']
    x, weight = torch.empty(700, 96), torch.empty(128, 96)
    assert pays(x, weight) is (ONEDNN and capability == 'AVX512')
    assert not pays(x[:1], weight) and not pays(x.double(), weight.double())


def test_frozen_weights_get_no_gradient():
    layer = nn.Linear(96, 128)
    layer.requires_grad_(False)
    make_fast(layer)
    x = torch.randn(700, 96, requires_grad=True)
    layer(x).sum().backward()
    assert layer.weight.grad is None and x.grad is not None
