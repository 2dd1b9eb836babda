"""Beside ``test_extremes.py``, which compares all methods on random sizes, scales, types and layouts."""
import math

import pytest
import torch

from ding_grpo.rl_utils import efficient_method, entropy, less_efficient_method, naive_method, sum_of_squares
from ding_grpo.rollout import draw
from tests.rl_utils.textbook import allocations

METHODS = [naive_method, efficient_method, less_efficient_method]


def random_tokens():
    """Logits that are not contiguous, and tokens."""
    return torch.randn(5, 3, 2, dtype=torch.float64).permute(2, 1, 0).requires_grad_(), torch.randint(0, 5, (2, 3))


@pytest.mark.parametrize('method', METHODS)
class TestLogProb:

    def test_by_hand(self, method):
        # softmax of (log 1, log 2, log 5) is (1, 2, 5) / 8
        logit = torch.tensor([[[1., 2., 5.], [1., 2., 5.]]]).log()
        expected = torch.tensor([[math.log(1 / 8), math.log(5 / 8)]])
        assert torch.allclose(method(logit, torch.tensor([[0, 2]])), expected, atol=1e-6)
        assert torch.allclose(method(logit[0], torch.tensor([0, 2])), expected[0], atol=1e-6)  # without a batch

    @pytest.mark.parametrize('temperature', [1., 0.01])
    def test_large_logits_lose_no_digits_to_the_normaliser(self, method, temperature):
        """A log-sum-exp of 2,000 is rounded to 1.2e-4, and the sampler (``draw``) subtracts none."""
        torch.manual_seed(0)
        logit = torch.randn(64, 500) * 8 / temperature
        index, sampled = draw(logit, torch.rand(64, dtype=torch.double))
        exact = torch.log_softmax(logit.double(), -1).gather(-1, index.unsqueeze(-1)).squeeze(-1)
        for found in (method(logit, index), sampled):
            assert (found - exact).abs().max() < 1e-6

    def test_derivatives(self, method):
        logit, index = random_tokens()
        assert torch.autograd.gradcheck(method, (logit, index))
        assert torch.autograd.gradgradcheck(method, (logit, index))
        # a gradient of 0 does not make the second derivative 0: here it is 2 (onehot - softmax)^T (onehot - softmax)
        target = method(logit, index).detach()
        first, = torch.autograd.grad((method(logit, index) - target).square().sum(), logit, create_graph=True)
        second, = torch.autograd.grad(first[0, 0, 0], logit)
        slope = torch.nn.functional.one_hot(index[0, 0], 5) - logit[0, 0].detach().softmax(-1)
        assert torch.equal(first, torch.zeros_like(first)) and torch.allclose(second[0, 0], 2 * slope[0] * slope)


def test_entropy_and_sum_of_squares_by_hand():
    logit = torch.tensor([[[0.5, 0.25, 0.25]]]).log().requires_grad_()
    # log 2 / 2 + 2 * log 4 / 4 = 1.5 log 2
    assert entropy(logit).item() == pytest.approx(1.5 * math.log(2))
    squares = sum_of_squares(logit)
    assert squares.item() == pytest.approx(1 / 4 + 1 / 16 + 1 / 16) and not squares.requires_grad
    assert torch.autograd.gradcheck(entropy, (random_tokens()[0], ))


class TestEfficientMethod:

    @pytest.mark.parametrize('dtype, tolerance', [(torch.float64, 1e-12), (torch.bfloat16, 1e-2)])
    def test_chunks_equal_the_whole(self, dtype, tolerance):
        logit, index = torch.randn(2, 65, 4096).to(dtype).requires_grad_(), torch.randint(0, 4096, (2, 65))
        upstream = torch.randn(2, 65)
        grads = [
            torch.autograd.grad((method(logit, index) * upstream).sum(), logit)[0]
            for method in (efficient_method, naive_method)
        ]
        assert grads[0].dtype == dtype and torch.allclose(*grads, atol=tolerance)

    def test_padding_reaches_no_second_derivative(self):
        logit = torch.randn(1, 2, 3, dtype=torch.float64)
        logit[0, 1] = float('nan')
        logit.requires_grad_()
        logp = efficient_method(logit, torch.zeros(1, 2).long())
        first, = torch.autograd.grad(torch.where(torch.tensor([True, False]), logp, 0.).sum(), logit, create_graph=True)
        second, = torch.autograd.grad(first.square().sum(), logit)
        assert torch.isfinite(first).all() and torch.isfinite(second).all() and second[0, 0].any()

    def test_memory_above_logits_and_gradient_is_that_of_a_few_tokens(self):
        logit, index = torch.randn(2, 64, 4096, requires_grad=True), torch.randint(0, 4096, (2, 64))

        def taken(method):
            sizes, whole = allocations(lambda: torch.autograd.grad(method(logit, index).sum(), logit)
                                       ), logit.numel() * 4
            return sum(size >= whole for size in sizes), max(size for size in sizes if size < whole)

        copies, below = taken(efficient_method)
        assert copies == 1 and below <= 4 * 2 ** 17  # the gradient itself, and chunks
        assert taken(naive_method)[0] > 1  # so that this would notice
