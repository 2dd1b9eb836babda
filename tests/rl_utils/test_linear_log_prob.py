"""Beside ``test_token_rules.py``, which compares all options with the whole tensor of logits."""
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ding_grpo.rl_utils import entropy, linear_log_prob, naive_method
from ding_grpo.rl_utils.log_probs.token_rules import TokenRules
from ding_grpo.rollout import draw
from tests.rl_utils.textbook import OPTIONS, B, H, S, V, allocations, assert_same, inputs, plain


@pytest.mark.usefixtures('tile', 'on_device')
class TestLinearLogProb:

    @pytest.mark.parametrize('chunk_size', [2, None])
    @pytest.mark.parametrize('given', ['nothing', 'bias of all', 'kept', 'penalty'])
    @pytest.mark.parametrize('options', OPTIONS[::4], ids=str)
    def test_states_that_predict_several_tokens(self, options, given, chunk_size):
        hidden, weight, bias, index = inputs()
        states = hidden.flatten(0, 1)[:4].detach().requires_grad_()
        state, mask = torch.tensor([[3, 1, 3], [1, 0, 3]]), torch.tensor([[1, 1, 1], [0, 1, 1]])
        index[1, 2] = index[0, 0]  # a state that predicts a token twice
        with_rules = {
            'nothing': dict(),
            'bias of all': dict(rules=TokenRules(bias=torch.arange(V) / 5)),
            'kept': dict(kept=torch.stack([index, (index + 1) % V], -1)),
            'penalty': dict(rules=TokenRules(penalty=2., first_seen=torch.arange(B * V).view(B, V) % 3)),
        }
        options = dict(options, mask=mask, bias=bias, return_entropy=True, chunk_size=chunk_size, **with_rules[given])
        found = linear_log_prob(states, weight, index, state=state, **options)
        expected = linear_log_prob(states[state], weight, index, **options)
        assert_same(found, expected, (states, weight, bias))

    def test_a_state_is_multiplied_once(self):
        hidden, weight, _, index = inputs()
        with FlopCounterMode(display=False) as counted, torch.no_grad():
            linear_log_prob(hidden[0], weight, index, state=torch.tensor([[1, 1, 1], [2, 1, 2]]))
        assert counted.get_total_flops() == 2 * 2 * H * V  # of two states

    def test_masked_positions_are_zero_and_reach_no_gradient(self):
        hidden, weight, _, index = inputs()
        mask = torch.tensor([[1, 0, 1], [0, 0, 1]])
        with torch.no_grad():
            hidden[mask == 0] = float('nan')  # not even looked at
        logp, h = linear_log_prob(hidden, weight, index, mask=mask, return_entropy=True)
        (logp.sum() + h.sum()).backward()
        assert (logp[mask == 0] == 0).all() and (h[mask == 0] == 0).all() and (logp[mask == 1] < 0).all()
        assert torch.isfinite(weight.grad).all() and (hidden.grad[mask == 0] == 0).all()

    def test_frozen_inputs(self):
        hidden, weight, bias, index = inputs()
        expected = torch.autograd.grad(linear_log_prob(hidden, weight, index, bias=bias).sum(), (hidden, weight))
        for frozen in range(2):
            args = [hidden, weight]
            args[frozen] = args[frozen].detach()
            logp = linear_log_prob(*args, index, bias=bias.detach())
            found, = torch.autograd.grad(logp.sum(), (hidden, weight)[1 - frozen])
            assert torch.allclose(found, expected[1 - frozen])

    def test_tokens_excluded_by_the_bias(self):
        hidden, weight, bias, index = inputs()
        with torch.no_grad():
            bias[(index[0, 0] + 1) % V] = float('-inf')
        index = index[:, :1].expand(B, S).clone().fill_(index[0, 0])
        found = linear_log_prob(hidden, weight, index, bias=bias, return_entropy=True)
        assert_same(found, plain(hidden, weight, bias, index), (hidden, weight))

    def test_rounded_factors(self):
        """Products of bfloat16 are exact in float64, so that only their own rounding could make a difference."""
        hidden, weight, bias, index = inputs()
        logp, h = linear_log_prob(hidden, weight, index, bias=bias, rounded=True, return_entropy=True)
        found = torch.autograd.grad(logp.sum(), (hidden, weight, bias))
        x, w = (x.detach().bfloat16().double() for x in (hidden, weight))
        z = (x @ w.T + bias).detach().requires_grad_()
        expected = naive_method(z, index)
        g, = torch.autograd.grad(expected.sum(), z)
        half = g.bfloat16().double()
        of_leaves = half @ w, half.flatten(0, 1).T @ x.flatten(0, 1), g.sum((0, 1))
        for a, b in zip((logp, h, *found), (expected, entropy(z), *of_leaves)):
            assert torch.allclose(a, b, atol=1e-12)

    def test_rounded_factors_of_kept_tokens(self):
        hidden, weight, bias, index = inputs()
        kept = torch.stack([(index + 1) % V, index], dim=-1)
        factors = [x.detach().bfloat16().double().requires_grad_() for x in (hidden, weight)]
        found = [linear_log_prob(hidden, weight, index, bias=bias, kept=kept, rounded=True)]
        exact = [linear_log_prob(*factors, index, bias=bias, kept=kept)]
        found += torch.autograd.grad(found[0].sum(), (hidden, weight))
        exact += torch.autograd.grad(exact[0].sum(), factors)
        for a, b in zip(found, exact):
            assert torch.allclose(a, b, atol=1e-12)

    @pytest.mark.parametrize('rounded', [True, False])
    def test_half_types_sum_in_float32(self, rounded):
        """With and without kept ids."""
        hidden, weight, _, index = inputs(torch.bfloat16)
        found = []
        for kept in (None, torch.arange(V).expand(B, S, V)):
            logp = linear_log_prob(hidden, weight, index, kept=kept, rounded=rounded)
            found.append((logp, *torch.autograd.grad(logp.sum(), (hidden, weight))))
        exact = naive_method(hidden.float() @ weight.float().T if rounded else (hidden @ weight.T).float(), index)
        logp, *grads = found[0]
        assert logp.dtype is torch.float32 and torch.allclose(logp, exact, atol=2e-6 if rounded else 1e-5)
        assert [x.dtype for x in grads] == [torch.bfloat16] * 2
        if rounded:
            assert torch.allclose(found[1][0], exact, atol=2e-6)
            assert all(torch.allclose(a, b, rtol=0.02, atol=0.02) for a, b in zip(*found))


@pytest.mark.parametrize('entropy_weight', [0., 1.])
def test_large_products_and_several_tiles(entropy_weight):
    """In float32, where another library multiplies; two tiles of tokens by two of the vocabulary."""
    torch.manual_seed(0)
    index = torch.randint(0, 1100, (1, 2100))
    hidden = torch.randn(1, 2100, 64).requires_grad_()
    weight, bias = torch.randn(1100, 64).mul_(0.1).requires_grad_(), torch.randn(1100).requires_grad_()
    a, b = (
        torch.autograd.grad((logp + entropy_weight * h).sum(), (hidden, weight, bias)) for logp, h in (
            linear_log_prob(hidden, weight, index, bias=bias, return_entropy=True),
            plain(hidden, weight, bias, index)[:2],
        )
    )
    for x, y in zip(a, b):
        assert torch.allclose(x, y, atol=1e-3, rtol=1e-3) and (x - y).abs().mean() < 1e-5 * y.abs().max()


@pytest.mark.parametrize('shift, rounding', [(0., 1e-3), (300., 1e-3), (1e4, 1e-2)])  # float32 rounds 1e4 to 1e-3
def test_entropy_of_large_logits(shift, rounding):
    """H = log-sum-exp - mean logit lost all its digits to the size of the logits."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(1, 20, 4, requires_grad=True), torch.randn(3000, 4)
    index, bias = torch.zeros(1, 20, dtype=torch.long), torch.full((3000, ), shift)
    _, h = linear_log_prob(hidden, weight, index, bias=bias, return_entropy=True)
    exact = entropy(hidden.double() @ weight.double().T)
    grads = [torch.autograd.grad(x.sum(), hidden)[0] for x in (h, exact)]
    assert torch.allclose(h.double(), exact, atol=rounding) and torch.allclose(*grads, atol=max(rounding, 2e-3))


@pytest.mark.parametrize('kept', [False, True])
@pytest.mark.parametrize('entropy_weight', [0., 1.])
@pytest.mark.parametrize('temperature', [1., 2 ** -3, 2 ** -7])
def test_low_temperatures_agree_with_the_sampler(temperature, entropy_weight, kept):
    """The normaliser of logits of 2,000 was rounded to 1.2e-4; the sampler subtracts none."""
    torch.manual_seed(0)
    # multiples of 1 / 16 up to 1: float32 has their products, sums and quotients exactly
    hidden, weight = (torch.randint(-16, 17, shape) / 16 for shape in ((1, 16, 256), (2500, 256)))
    index, sampled = draw(hidden[0] @ weight.T / temperature, torch.rand(16, dtype=torch.double))
    ids = dict(kept=torch.arange(len(weight)).expand(1, 16, -1)) if kept else {}
    leaves, wide = ([x.to(dtype).requires_grad_() for x in (hidden, weight)] for dtype in (torch.float, torch.double))
    found = linear_log_prob(*leaves, index[None], temperature=temperature, return_entropy=True, **ids)
    exact = plain(*wide, torch.zeros(()), index[None], temperature)[:2]
    assert (found[0][0] - sampled).abs().max() < 1e-6
    grads = [
        torch.autograd.grad((logp + entropy_weight * h).sum() if entropy_weight else logp.sum(), inputs)
        for (logp, h), inputs in ((found, leaves), (exact, wide))
    ]
    for a, b in zip([*found, *grads[0]], [*exact, *grads[1]]):
        assert (a - b).abs().max() < 3e-6 * max(b.abs().max().item(), 1)


@pytest.mark.parametrize('size', [16, 256])
def test_autocast_changes_nothing(size):
    """It made the forward multiply in another type than the backward; and large products crashed."""
    hidden, weight = torch.randn(1, size, 64, requires_grad=True), torch.randn(1024, 64, requires_grad=True)
    index = torch.zeros(1, size, dtype=torch.long)
    plain = linear_log_prob(hidden, weight, index)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        cast = linear_log_prob(hidden, weight, index)
        inside = torch.autograd.grad(cast.sum(), weight)[0]
    assert torch.equal(plain, cast) and torch.equal(inside, torch.autograd.grad(plain.sum(), weight)[0])


def test_logits_of_all_tokens_never_exist():
    hidden, weight = torch.randn(4, 512, 8, requires_grad=True), torch.randn(4096, 8, requires_grad=True)
    index = torch.randint(0, 4096, (4, 512))

    def learn():
        logp, h = linear_log_prob(hidden, weight, index, return_entropy=True)
        torch.autograd.grad(logp.sum() + h.sum(), (hidden, weight))

    assert 2048 * 1024 * 4 <= max(allocations(learn)) < 2 * 2048 * 1024 * 4  # a tile; all logits are 4 of them


@pytest.mark.usefixtures('tile')
@pytest.mark.parametrize('with_entropy', [False, True])
@pytest.mark.parametrize('options', OPTIONS[::4], ids=str)
@pytest.mark.parametrize('kept', [None, torch.tensor([3, 0, 5, -1])], ids=['all', 'kept'])
def test_sums_of_squares_change_no_other_bit(options, kept, with_entropy):
    hidden, weight, bias, _ = inputs()
    given = dict(
        options, index=torch.zeros(B, S).long(), bias=bias, kept=None if kept is None else kept.expand(B, S, 4)
    )
    logp, *h, squares = linear_log_prob(hidden, weight, return_entropy=with_entropy, return_squares=True, **given)
    without = linear_log_prob(hidden, weight, **given)
    assert torch.equal(logp, without) and len(h) == with_entropy and squares.shape == logp.shape
    grads = [torch.autograd.grad(x.sum(), (hidden, weight, bias)) for x in (logp, without)]
    assert all(torch.equal(a, b) for a, b in zip(*grads))
