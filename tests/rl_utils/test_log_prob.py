import math

import pytest
import torch

from ding_grpo.rl_utils import efficient_method, entropy, less_efficient_method, naive_method, sum_of_squares
from ding_grpo.rl_utils.log_probs import log_prob
from ding_grpo.rollout import draw

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

    @pytest.mark.parametrize('shape', [(0, 3, 5), (2, 0, 5), (0, 5)])
    def test_no_tokens(self, method, shape):
        logit = torch.zeros(shape, requires_grad=True)
        logp = method(logit, torch.zeros(shape[:-1], dtype=torch.long))
        logp.sum().backward()
        assert logp.shape == shape[:-1] and logit.grad.shape == shape

    def test_one_token_in_the_vocabulary(self, method):
        logit = torch.tensor([[[1e4], [-3.]]], requires_grad=True)
        logp = method(logit, torch.zeros(1, 2, dtype=torch.long))
        logp.sum().backward()
        assert torch.equal(logp, torch.zeros(1, 2)) and torch.equal(logit.grad, torch.zeros(1, 2, 1))

    def test_extreme_logits(self, method):
        logit = torch.tensor([[[1e4, -1e4, 0.]]], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(method, (logit, torch.tensor([[1]])))
        assert method(logit, torch.tensor([[1]])).item() == -2e4

    @pytest.mark.parametrize('temperature', [1., 0.1, 0.01, 1e-3])
    def test_large_logits_lose_no_digits_to_the_normaliser(self, method, temperature):
        """A log-sum-exp of 2,000 is rounded to 1.2e-4, and the sampler (``draw``) subtracts none."""
        torch.manual_seed(0)
        logit = torch.randn(64, 500) * 8 / temperature
        index, sampled = draw(logit, torch.rand(64, dtype=torch.double))
        exact = torch.log_softmax(logit.double(), -1).gather(-1, index.unsqueeze(-1)).squeeze(-1)
        for found in (method(logit, index), sampled):
            assert (found - exact).abs().max() < 1e-6

    def test_gradcheck(self, method):
        logit = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(method, (logit, torch.randint(0, 5, (2, 3))))

    def test_second_derivative(self, method):
        logit = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
        index = torch.randint(0, 5, (2, 3))
        assert torch.autograd.gradgradcheck(method, (logit, index))
        # a gradient of 0 does not make the second derivative 0: here it is 2 (onehot - softmax)^T (onehot - softmax)
        target = method(logit, index).detach()
        first, = torch.autograd.grad((method(logit, index) - target).square().sum(), logit, create_graph=True)
        second, = torch.autograd.grad(first[0, 0, 0], logit)
        slope = torch.nn.functional.one_hot(index[0, 0], 5) - logit[0, 0].detach().softmax(-1)
        assert torch.equal(first, torch.zeros_like(first)) and torch.allclose(second[0, 0], 2 * slope[0] * slope)

    def test_any_layout(self, method):
        logit, index = torch.randn(7, 3, 2), torch.randint(0, 7, (2, 3))
        turned = logit.permute(2, 1, 0).requires_grad_()  # (2, 3, 7), not contiguous
        straight = turned.detach().contiguous().requires_grad_()
        grads = [torch.autograd.grad(method(x, index).pow(2).sum(), x)[0] for x in (turned, straight)]
        assert torch.allclose(*grads)

    @pytest.mark.parametrize(
        'logits, index, message', [
            (torch.zeros(2, 3, 5), torch.zeros(2, 4).long(), r'index \(2, 4\).*\(2, 3\)'),
            (torch.zeros(2, 3, 5), torch.zeros(2, 3), 'index.*int64'),
            (torch.zeros(2, 3, 5).long(), torch.zeros(2, 3).long(), 'logits.*floats'),
            (torch.zeros(5), torch.zeros(()).long(), r'logits \(5,\)'),
            (torch.zeros(2, 3, 5), torch.full((2, 3), -100), 'index from -100.*V - 1 = 4'),
            (torch.zeros(2, 3, 5), torch.full((2, 3), 5), 'index from 5'),
            (None, torch.zeros(2, 3).long(), 'logits of NoneType'),
        ]
    )
    def test_wrong_shapes_and_types(self, method, logits, index, message):
        with pytest.raises(ValueError, match=message):
            method(logits, index)


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

    def test_sum_of_squares_by_hand(self):
        logit = torch.tensor([[[0.5, 0.25, 0.25]]]).log().requires_grad_()
        squares = sum_of_squares(logit)
        assert squares.item() == pytest.approx(1 / 4 + 1 / 16 + 1 / 16) and not squares.requires_grad

    def test_gradcheck(self):
        assert torch.autograd.gradcheck(entropy, (torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True), ))


@pytest.mark.unittest
class TestEfficientMethod:

    def test_chunks_equal_the_whole(self, monkeypatch):
        monkeypatch.setattr(log_prob, 'CHUNK_ELEMENTS', 20)  # two tokens of ten at a time, of five
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.bfloat16, 1e-2)):
            logit, index = torch.randn(3, 5, 10).to(dtype).requires_grad_(), torch.randint(0, 10, (3, 5))
            upstream = torch.randn(3, 5)
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
        from torch.profiler import ProfilerActivity, profile
        logit = torch.randn(2, 64, 4096, requires_grad=True)
        index = torch.randint(0, 4096, (2, 64))

        def taken(method):
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
                torch.autograd.grad(method(logit, index).sum(), logit)
            sizes = [e.self_cpu_memory_usage for e in prof.events()]
            whole = logit.numel() * 4
            return sum(size >= whole for size in sizes), max(size for size in sizes if size < whole)

        copies, below = taken(efficient_method)
        assert copies == 1 and below <= 4 * 2 ** 17  # the gradient itself, and chunks
        assert taken(naive_method)[0] > 1  # so that this would notice
