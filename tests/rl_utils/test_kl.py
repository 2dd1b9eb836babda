import math

import pytest
import torch

from ding_grpo.rl_utils import KL_TYPES, calculate_kl_div, exact_kl, kl_estimate, straight_through_kl
from tests.rl_utils.peers import double, recorded, tensors

pytestmark = pytest.mark.usefixtures('on_device')


@pytest.mark.parametrize('kl_type', KL_TYPES)
class TestEveryType:

    def test_equals_verl(self, kl_type):
        verl = recorded('notebook_verl')['verl']
        found = kl_estimate(*tensors(verl, 'logp', 'logp_ref'), kl_type)
        assert torch.allclose(found, double(verl['kl'][kl_type]), atol=1e-9)

    def test_mean_over_all_elements(self, kl_type):
        ratio = torch.randn(3, 4)
        per_token = kl_estimate(ratio, torch.zeros(3, 4), kl_type)
        assert torch.allclose(calculate_kl_div(ratio, kl_type), per_token.mean())
        assert calculate_kl_div(torch.zeros(0), kl_type) == 0

    def test_gradcheck(self, kl_type):
        new, ref = (torch.randn(3, 4).double().requires_grad_() for _ in range(2))
        assert torch.autograd.gradcheck(lambda a, b: kl_estimate(a, b, kl_type), (new, ref))
        assert torch.autograd.gradcheck(lambda a, b: calculate_kl_div(a - b, kl_type), (new, ref))


def test_gradients_as_losses():
    """Expectations over all six tokens: k1's is zero, k3's that of KL(ref || new), the straight-through one's that
    of KL(new || ref)."""
    logit, ref = torch.randn(6).double().requires_grad_(), torch.randn(6).double().log_softmax(0)

    def gradient(loss):
        return torch.autograd.grad(loss, logit)[0]

    def expected(estimate, kl_type):
        logp = logit.log_softmax(0)
        return gradient((logp.exp().detach() * estimate(logp, ref, kl_type)).sum())

    forward = gradient(exact_kl(logit[None], ref[None]).sum())
    backward = gradient(exact_kl(ref[None], logit[None]).sum())
    assert torch.allclose(expected(kl_estimate, 'k1'), torch.zeros(6).double(), atol=1e-12)
    assert torch.allclose(expected(kl_estimate, 'k3'), backward, atol=1e-12)
    for kl_type in KL_TYPES:
        assert torch.allclose(expected(straight_through_kl, kl_type), forward, atol=1e-12)
        assert torch.equal(straight_through_kl(logit, ref, kl_type), kl_estimate(logit, ref, kl_type))


def test_exact_kl_by_hand_and_where_a_probability_is_zero():
    new = double([[0.5, 0.5, 0.]]).log().requires_grad_()
    ref = double([[0.25, 0.25, 0.5]]).log()
    kl = exact_kl(new, ref)
    kl.sum().backward()
    assert kl.item() == pytest.approx(math.log(2)) and torch.isfinite(new.grad).all()
    assert exact_kl(ref, new.detach()).item() == float('inf')
    # also where the probability of new underflows
    assert exact_kl(torch.tensor([[0., -1e4]]), torch.tensor([[0., float('-inf')]])).item() == float('inf')
    assert torch.autograd.gradcheck(exact_kl, tuple(torch.randn(2, 3, 4).double().requires_grad_() for _ in range(2)))


def test_the_straight_through_value_survives_large_ratios():
    assert straight_through_kl(torch.tensor([2e4 + 3]), torch.zeros(1), 'k1').item() == 2e4 + 3


@pytest.mark.parametrize('log_ratio', [-3., -5., -8.])
def test_half_types_are_computed_in_float32(log_ratio):
    found = kl_estimate(torch.tensor([log_ratio]).half(), torch.zeros(1).half(), 'k3')
    assert found.item() == pytest.approx(math.exp(-log_ratio) - 1 + log_ratio, rel=1e-4)
