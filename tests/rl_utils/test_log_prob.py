import math

import pytest
import torch

from ding_grpo.rl_utils import efficient_method, entropy, less_efficient_method, naive_method

METHODS = [naive_method, efficient_method, less_efficient_method]


@pytest.mark.unittest
@pytest.mark.parametrize('method', METHODS)
class TestLogProb:

    def test_by_hand(self, method):
        # softmax of (log 1, log 2, log 5) is (1, 2, 5) / 8
        logit = torch.tensor([[[1., 2., 5.], [1., 2., 5.]]]).log()
        logp = method(logit, torch.tensor([[0, 2]]))
        assert torch.allclose(logp, torch.tensor([[math.log(1 / 8), math.log(5 / 8)]]), atol=1e-6)

    def test_without_batch(self, method):
        logit, index = torch.randn(5, 7), torch.randint(0, 7, (5, ))
        assert torch.allclose(method(logit, index), method(logit[None], index[None])[0])

    def test_gradient_is_onehot_minus_softmax(self, method):
        logit = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
        index = torch.randint(0, 5, (2, 3))
        method(logit, index).sum().backward()
        expected = torch.nn.functional.one_hot(index, 5) - logit.detach().softmax(-1)
        assert torch.allclose(logit.grad, expected, atol=1e-12)

    def test_minus_infinity_off_the_taken_token(self, method):
        logit = torch.tensor([[[0., 0., float('-inf')]]], requires_grad=True)
        logp = method(logit, torch.tensor([[1]]))
        logp.sum().backward()
        assert logp.item() == pytest.approx(-math.log(2), abs=1e-6)
        assert torch.isfinite(logit.grad).all()

    def test_half_types_accumulate_in_float32(self, method):
        logit = torch.randn(2, 3, 1000)
        index = torch.randint(0, 1000, (2, 3))
        half = logit.to(torch.bfloat16)
        assert torch.allclose(method(half, index), naive_method(half.float(), index), atol=1e-5)
        assert method(half, index).dtype == torch.float32

    def test_no_rows(self, method):
        assert method(torch.zeros(0, 3, 5), torch.zeros(0, 3, dtype=torch.long)).shape == (0, 3)


@pytest.mark.unittest
class TestEntropy:

    def test_by_hand(self):
        # (1/2, 1/4, 1/4): log 2 / 2 + 2 * log 4 / 4 = 1.5 log 2
        assert entropy(torch.tensor([[[0.5, 0.25, 0.25]]]).log()).item() == pytest.approx(1.5 * math.log(2))

    @pytest.mark.parametrize('logit', [[0., 0., float('-inf')], [0., 150.], [0., -150., float('-inf')], [1e4, -1e4]])
    def test_gradient_where_a_probability_is_zero(self, logit):
        # 0 * log 0 has no gradient that torch.special.entr could give; the entropy's is 0 there
        logit = torch.tensor([[logit]], requires_grad=True)
        value = entropy(logit)
        value.sum().backward()
        assert torch.isfinite(value).all() and torch.isfinite(logit.grad).all()

    def test_gradcheck(self):
        assert torch.autograd.gradcheck(entropy, (torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True), ))
