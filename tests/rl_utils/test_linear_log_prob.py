import pytest
import torch
from textbook import OPTIONS, B, H, S, V, assert_same, inputs, plain

from ding_grpo.rl_utils import entropy, linear_log_prob, naive_method
from ding_grpo.rl_utils.log_probs.tiles import Head
from ding_grpo.rl_utils.log_probs.token_rules import TokenRules
from ding_grpo.rollout import draw


@pytest.mark.unittest
@pytest.mark.usefixtures('tile')
@pytest.mark.usefixtures('on_device')
class TestLinearLogProb:

    @pytest.mark.parametrize('options', OPTIONS, ids=str)
    @pytest.mark.parametrize('chunk_size', [1, 4, None])
    def test_equals_the_textbook(self, options, chunk_size):
        hidden, weight, bias, index = inputs()
        found = linear_log_prob(hidden, weight, index, bias=bias, chunk_size=chunk_size, return_entropy=True, **options)
        expected = plain(hidden, weight, bias, index, **options)
        assert_same(found, expected, (hidden, weight, bias))

    @pytest.mark.parametrize('options', OPTIONS, ids=str)
    def test_kept_ids(self, options):
        hidden, weight, bias, index = inputs()
        other = (index + 1 + torch.arange(S)) % V
        kept = torch.stack([other, index, torch.full_like(index, -1)], dim=-1)
        found = linear_log_prob(hidden, weight, index, bias=bias, kept=kept, return_entropy=True, **options)
        expected = plain(hidden, weight, bias, index, kept=kept, **options)
        assert_same(found, expected, (hidden, weight, bias))

    @pytest.mark.parametrize('chunk_size', [1, 2, None])
    @pytest.mark.parametrize('given', ['nothing', 'bias of all', 'kept', 'penalty'])
    @pytest.mark.parametrize('options', OPTIONS, ids=str)
    def test_states_that_predict_several_tokens(self, options, given, chunk_size):
        hidden, weight, bias, index = inputs()
        states = hidden.flatten(0, 1)[:4].detach().requires_grad_()
        state, mask = torch.tensor([[3, 1, 3], [1, 0, 3]]), torch.tensor([[1, 1, 1], [0, 1, 1]])
        index[1, 2] = index[0, 0]  # a state that predicts a token twice
        with_rules = dict(
            kept=dict(kept=torch.stack([index, (index + 1) % V], -1)),
            penalty=dict(rules=TokenRules(penalty=2., first_seen=torch.arange(B * V).view(B, V) % 3)),
        )
        with_rules['bias of all'] = dict(rules=TokenRules(bias=torch.arange(V) / 5))
        options = dict(options, mask=mask, bias=bias, return_entropy=True, chunk_size=chunk_size)
        options.update(with_rules.get(given, {}))
        found = linear_log_prob(states, weight, index, state=state, **options)
        expected = linear_log_prob(states[state], weight, index, **options)
        assert_same(found, expected, (states, weight, bias))

    def test_a_state_is_multiplied_once(self, monkeypatch):
        (hidden, weight, _, index), multiplied = inputs(), []
        product = Head.product.fget
        monkeypatch.setattr(
            Head, 'product',
            property(lambda head: lambda a, b: multiplied.append(tuple(a.shape)) or product(head)(a, b))
        )
        linear_log_prob(hidden[0], weight, index, state=torch.tensor([[1, 1, 1], [2, 1, 2]]))
        assert set(multiplied) == {(2, H)}

    def test_masked_positions_are_zero_and_reach_no_gradient(self):
        hidden, weight, _, index = inputs()
        mask = torch.tensor([[1, 0, 1], [0, 0, 1]])
        with torch.no_grad():
            hidden[mask == 0] = float('nan')  # not even looked at
        logp, h = linear_log_prob(hidden, weight, index, mask=mask, return_entropy=True)
        (logp.sum() + h.sum()).backward()
        assert (logp[mask == 0] == 0).all() and (h[mask == 0] == 0).all() and (logp[mask == 1] < 0).all()
        assert torch.isfinite(weight.grad).all() and (hidden.grad[mask == 0] == 0).all()

    @pytest.mark.parametrize('masked', [True, False])
    def test_nothing_to_do(self, masked):
        hidden, weight, _, index = inputs()
        if not masked:
            hidden, index = hidden[:, :0], index[:, :0]
        logp = linear_log_prob(hidden, weight, index, mask=torch.zeros(B, S) if masked else None)
        logp.sum().backward()
        assert torch.equal(logp, torch.zeros_like(logp)) and torch.equal(weight.grad, torch.zeros_like(weight))

    def test_frozen_inputs(self):
        hidden, weight, bias, index = inputs()
        expected = torch.autograd.grad(linear_log_prob(hidden, weight, index, bias=bias).sum(), (hidden, weight))
        for frozen in range(2):
            args = [hidden, weight]
            args[frozen] = args[frozen].detach()
            found, = torch.autograd.grad(
                linear_log_prob(*args, index, bias=bias.detach()).sum(), (hidden, weight)[1 - frozen]
            )
            assert torch.allclose(found, expected[1 - frozen])

    def test_gradcheck(self):
        hidden, weight, bias, index = inputs()
        assert torch.autograd.gradcheck(
            lambda h, w, b: linear_log_prob(h, w, index, bias=b, softcap=2., chunk_size=2, return_entropy=True),
            (hidden, weight, bias)
        )

    def test_each_output_alone(self):
        hidden, weight, bias, index = inputs()
        expected = plain(hidden, weight, bias, index)
        found = linear_log_prob(hidden, weight, index, bias=bias, return_entropy=True)
        for a, b in zip(found, expected):
            for x, y in zip(*(torch.autograd.grad(out.sum(), (hidden, weight, bias), retain_graph=True)
                              for out in (a, b))):
                assert torch.allclose(x, y, atol=1e-12)

    def test_tokens_excluded_by_the_bias(self):
        hidden, weight, bias, index = inputs()
        with torch.no_grad():
            bias[(index[0, 0] + 1) % V] = float('-inf')
        index = index[:, :1].expand(B, S).clone().fill_(index[0, 0])
        found = linear_log_prob(hidden, weight, index, bias=bias, return_entropy=True)
        assert_same(found, plain(hidden, weight, bias, index), (hidden, weight))

    @pytest.mark.parametrize('with_kept', [False, True])
    def test_rounded_factors(self, with_kept):
        """Products of bfloat16 are exact in float64, so that only their own rounding could make a difference."""
        hidden, weight, bias, index = inputs()
        with torch.no_grad():
            for x in (hidden, weight):
                x.copy_(x.bfloat16())
        kept = torch.stack([(index + 1) % V, index], dim=-1) if with_kept else None
        given = dict(bias=bias, kept=kept, return_entropy=True)
        found = linear_log_prob(hidden, weight, index, rounded=True, **given)
        for a, b in zip(found, plain(hidden, weight, bias, index, kept=kept)):
            assert torch.allclose(a, b, atol=1e-12)
        hidden, weight, bias, index = inputs(seed=1)
        given.update(bias=bias, kept=None if kept is None else torch.stack([(index + 1) % V, index], dim=-1))
        found, exact = (linear_log_prob(hidden, weight, index, rounded=r, **given) for r in (True, False))
        grads = [torch.autograd.grad(sum(x.sum() for x in out), (hidden, weight, bias)) for out in (found, exact)]
        for a, b in zip((*found, *grads[0]), (*exact, *grads[1])):
            assert 0 < (a - b).norm() < 0.02 * b.norm()  # bfloat16 has 8 bits

    def test_gradients_of_rounded_factors(self):
        hidden, weight, bias, index = inputs()
        found = torch.autograd.grad(
            linear_log_prob(hidden, weight, index, bias=bias, rounded=True).sum(), (hidden, weight, bias)
        )
        h, w = (x.detach().bfloat16().double() for x in (hidden, weight))
        z = (h @ w.T + bias).detach().requires_grad_()
        g, = torch.autograd.grad(naive_method(z, index).sum(), z)
        half = g.bfloat16().double()
        for a, b in zip(found, (half @ w, half.flatten(0, 1).T @ h.flatten(0, 1), g.sum((0, 1)))):
            assert torch.allclose(a, b, atol=1e-12)

    def test_rounded_factors_of_half_types(self):
        """Sums are in float32 with and without kept ids."""
        hidden, weight, _, index = inputs(torch.bfloat16)
        found = []
        for kept in (None, torch.arange(V).expand(B, S, V)):
            logp = linear_log_prob(hidden, weight, index, kept=kept, rounded=True)
            found.append((logp, *torch.autograd.grad(logp.sum(), (hidden, weight))))
        exact = naive_method(hidden.float() @ weight.float().T, index)
        for logp, *_ in found:
            assert logp.dtype is torch.float32 and torch.allclose(logp, exact, atol=2e-6)
        for a, b in zip(*found):
            assert a.dtype == b.dtype and torch.allclose(a, b, rtol=0.02, atol=0.02)

    def test_half_types_are_normalised_in_float32(self):
        hidden, weight, _, index = inputs(torch.bfloat16)
        logp = linear_log_prob(hidden, weight, index)
        logp.sum().backward()
        whole = naive_method((hidden @ weight.T).float(), index)
        assert logp.dtype == torch.float32 and torch.allclose(logp, whole, atol=1e-5)
        assert weight.grad.dtype == torch.bfloat16

    def test_extreme_logits(self):
        hidden = torch.tensor([[[1e4]]], dtype=torch.float64, requires_grad=True)
        weight = torch.tensor([[1.], [-1.], [0.]], dtype=torch.float64, requires_grad=True)
        logp, h = linear_log_prob(hidden, weight, torch.tensor([[1]]), return_entropy=True)
        (logp.sum() + h.sum()).backward()
        assert logp.item() == -2e4 and h.item() == pytest.approx(0, abs=1e-9)
        assert torch.isfinite(hidden.grad).all() and torch.isfinite(weight.grad).all()

    @pytest.mark.parametrize(
        'change, message', [
            (dict(hidden=torch.zeros(2, 3)), 'hidden'),
            (dict(weight=torch.zeros(V, H + 1).double()), 'weight.*H = 4'),
            (dict(weight=torch.zeros(V, H)), 'weight.*float64'),
            (dict(index=torch.zeros(B, S)), 'index.*int64'),
            (dict(mask=torch.zeros(B)), r'mask \(2,\)'),
            (dict(bias=torch.zeros(3)), 'bias'),
            (dict(bias=torch.zeros(V)), 'bias of torch.float32'),
            (dict(kept=torch.tensor([[[V, 0]] * S] * B)), 'kept'),
            (dict(hidden=None), 'hidden of NoneType'),
            (dict(softcap=float('inf')), 'softcap = inf'),
            (dict(scale=None), 'scale = None'),
            (dict(chunk_size=2.5), 'chunk_size = 2.5'),
            (dict(kept=torch.zeros(B, S).long()), 'kept'),
            (dict(kept=torch.full((B, S, 2), V)), 'kept.*sampled token'),
            (dict(index=torch.full((B, S), V)), 'index from 7 to 7.*V - 1 = 6'),
            (dict(index=torch.full((B, S), -100)), 'index from -100'),
            (dict(temperature=0), 'temperature = 0'),
            (dict(softcap=-1.), 'softcap = -1.0'),
            (dict(chunk_size=0), 'chunk_size = 0'),
            (dict(hidden=torch.zeros(4, H).double(), state=torch.zeros(B, S)), 'state of torch.float32'),
            (dict(hidden=torch.zeros(4, H).double(), state=torch.full((B, S), 4)), 'state from 4 to 4.*M - 1 = 3'),
            (dict(state=torch.zeros(B, S).long()), r'hidden.*\(M, H\)'),
        ]
    )
    def test_wrong_use(self, change, message):
        hidden, weight, _, index = inputs()
        change = {name: x.to(weight.device) if isinstance(x, torch.Tensor) else x for name, x in change.items()}
        with pytest.raises(ValueError, match=message):
            linear_log_prob(**{**dict(hidden=hidden, weight=weight, index=index), **change})


@pytest.mark.unittest
@pytest.mark.parametrize('entropy_weight', [0., 1.])
def test_large_products_and_several_tiles(entropy_weight):
    """In float32, where another library multiplies; two tiles of tokens by two of the vocabulary."""
    torch.manual_seed(0)
    index = torch.randint(0, 1100, (1, 2100))
    hidden = torch.randn(1, 2100, 64).requires_grad_()
    weight, bias = torch.randn(1100, 64).mul_(0.1).requires_grad_(), torch.randn(1100).requires_grad_()
    grads = []
    for logp, h in (
            linear_log_prob(hidden, weight, index, bias=bias, return_entropy=True),
            plain(hidden, weight, bias, index)[:2],
    ):
        grads.append(torch.autograd.grad((logp + entropy_weight * h).sum(), (hidden, weight, bias)))
    for a, b in zip(*grads):
        assert torch.allclose(a, b, atol=1e-3, rtol=1e-3) and (a - b).abs().mean() < 1e-5 * b.abs().max()


@pytest.mark.unittest
@pytest.mark.parametrize('shift', [0., 300., 1e4])
def test_entropy_of_large_logits(shift):
    """H = log-sum-exp - mean logit lost all its digits to the size of the logits."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(1, 20, 4, requires_grad=True), torch.randn(3000, 4)
    index = torch.zeros(1, 20, dtype=torch.long)
    bias = torch.full((3000, ), shift)
    _, h = linear_log_prob(hidden, weight, index, bias=bias, return_entropy=True)
    exact = entropy(hidden.double() @ weight.double().T)
    grads = [torch.autograd.grad(x.sum(), hidden)[0] for x in (h, exact)]
    assert torch.allclose(h.double(), exact, atol=1e-2 if shift == 1e4 else 1e-3)  # float32 rounds 1e4 to 1e-3
    assert torch.allclose(*grads, atol=1e-2 if shift == 1e4 else 2e-3)


@pytest.mark.unittest
@pytest.mark.parametrize('kept', [False, True])
@pytest.mark.parametrize('entropy_weight', [0., 1.])
@pytest.mark.parametrize('temperature', [1., 2 ** -3, 2 ** -7, 2 ** -10])
def test_low_temperatures_agree_with_the_sampler(temperature, entropy_weight, kept):
    """The normaliser of logits of 2,000 was rounded to 1.2e-4; the sampler subtracts none."""
    torch.manual_seed(0)
    # multiples of 1 / 16 up to 1: float32 has their products, sums and quotients exactly
    hidden, weight = (torch.randint(-16, 17, shape) / 16 for shape in ((1, 64, 256), (2500, 256)))
    index, sampled = draw(hidden[0] @ weight.T / temperature, torch.rand(64, dtype=torch.double))
    ids = dict(kept=torch.arange(len(weight)).expand(1, 64, -1)) if kept else {}
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


@pytest.mark.unittest
@pytest.mark.parametrize('size', [16, 256])
def test_autocast_changes_nothing(size):
    """It made the forward multiply in another type than the backward; and large products crashed."""
    hidden, weight = torch.randn(1, size, 64, requires_grad=True), torch.randn(1024, 64, requires_grad=True)
    index = torch.zeros(1, size, dtype=torch.long)
    plain = linear_log_prob(hidden, weight, index)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        cast = linear_log_prob(hidden, weight, index)
    assert torch.equal(plain, cast)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        inside = torch.autograd.grad(cast.sum(), weight)[0]
    assert torch.equal(inside, torch.autograd.grad(plain.sum(), weight)[0])


@pytest.mark.unittest
def test_logits_of_all_tokens_never_exist():
    from torch.profiler import ProfilerActivity, profile
    hidden, weight = torch.randn(4, 512, 8, requires_grad=True), torch.randn(8192, 8, requires_grad=True)
    index = torch.randint(0, 8192, (4, 512))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        logp, h = linear_log_prob(hidden, weight, index, return_entropy=True)
        torch.autograd.grad(logp.sum() + h.sum(), (hidden, weight))
    largest = max(e.self_cpu_memory_usage for e in prof.events())
    assert 2048 * 1024 * 4 <= largest < 2 * 2048 * 1024 * 4  # a tile; all logits are 8 of them


@pytest.mark.unittest
@pytest.mark.usefixtures('tile')
@pytest.mark.parametrize('with_entropy', [False, True])
@pytest.mark.parametrize('options', OPTIONS, ids=str)
@pytest.mark.parametrize('kept', [None, torch.tensor([3, 0, 5, -1])], ids=['all', 'kept'])
def test_sums_of_squared_probabilities(options, kept, with_entropy):
    hidden, weight, bias, _ = inputs()
    index = torch.zeros(B, S).long()
    ids = None if kept is None else kept.expand(B, S, 4)
    expected = plain(hidden, weight, bias, index, kept=ids, **options)[2]
    logp, *h, squares = linear_log_prob(
        hidden, weight, index, bias=bias, kept=ids, return_entropy=with_entropy, return_squares=True, **options
    )
    assert torch.allclose(squares, expected, atol=1e-12) and not squares.requires_grad
    plain_found = linear_log_prob(hidden, weight, index, bias=bias, kept=ids, **options)
    assert torch.equal(logp, plain_found) and len(h) == with_entropy
    grads = [torch.autograd.grad(x.sum(), (hidden, weight, bias)) for x in (logp, plain_found)]
    assert all(torch.equal(a, b) for a, b in zip(*grads))
