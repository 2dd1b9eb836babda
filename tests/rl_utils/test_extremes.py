"""No NaN and no infinity where mathematics gives a number: hypothesis looks for inputs with which there is one."""
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ding_grpo.rl_utils import (
    ADVANTAGE_METHODS, DIVERGENCES, KL_TYPES, LOSS_PRESETS, LinearOutput, PPOLoss, calculate_kl_div, efficient_method,
    entropy, exact_kl, group_advantage, grpo_policy_data, grpo_policy_error, kl_estimate, less_efficient_method,
    linear_divergence, linear_log_prob, naive_method, ppo_data, ppo_error, straight_through_kl
)

METHODS = [naive_method, efficient_method, less_efficient_method]
SIZES = st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(1, 6))  # B, S, V
SCALES = st.sampled_from([0., 1e-6, 1., 1e2, 1e4])
DTYPES = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])
many = settings(max_examples=40, deadline=None, derandomize=True)


class Batch:
    """Random logits of a size, scale, type and layout, with minus infinity off the taken tokens."""

    def __init__(self, size, scale, dtype, seed, excluded):
        self.size, self.scale, self.dtype, self.excluded = size, scale, dtype, excluded
        self.generator = torch.Generator().manual_seed(seed)
        rows, tokens, vocabulary = size
        self.action = torch.randint(0, vocabulary, (rows, tokens), generator=self.generator)
        self.weight = (self.uniform(rows, tokens) < 0.7).to(dtype)

    def uniform(self, *shape):
        return torch.rand(*shape, generator=self.generator, dtype=torch.float64)

    def logit(self, requires_grad=True):
        rows, tokens, vocabulary = self.size
        x = (self.uniform(vocabulary, tokens, rows) * 2 - 1).permute(2, 1, 0) * self.scale  # not contiguous
        taken = torch.nn.functional.one_hot(self.action, vocabulary).bool()
        x = x.masked_fill((self.uniform(*self.size) < self.excluded) & ~taken, float('-inf'))
        return x.to(self.dtype).requires_grad_(requires_grad)

    def number(self, *shape, scale=1.):
        return ((self.uniform(*shape) * 2 - 1) * scale).to(self.dtype)


@st.composite
def batches(draw):
    scale, dtype = draw(SCALES), draw(DTYPES)
    assume(dtype != torch.float16 or scale <= 1)  # gradients of huge ratios are numbers that float16 has not
    return Batch(draw(SIZES), scale, dtype, draw(st.integers(0, 10 ** 6)), draw(st.sampled_from([0., 0.5, 1.])))


def assert_finite(value, *leaves):
    """Of the value and of the gradients of all leaves that have one."""
    assert torch.isfinite(value).all(), value
    leaves = [x for x in leaves if x is not None and x.requires_grad]
    if value.requires_grad:
        for grad in torch.autograd.grad(value.sum(), leaves, allow_unused=True, retain_graph=True):
            assert grad is None or torch.isfinite(grad).all(), grad


class TestExtremes:

    @pytest.mark.parametrize('method', METHODS)
    @many
    @given(batch=batches())
    def test_log_prob(self, method, batch):
        logit = batch.logit()
        logp = method(logit, batch.action)
        assert_finite(logp, logit)
        exact = naive_method(logit.detach().double(), batch.action)
        assert logp.dtype is torch.promote_types(batch.dtype, torch.float32)
        assert (logp <= 1e-6).all() and torch.allclose(logp.double(), exact, rtol=1e-5, atol=1e-6 + 1e-6 * batch.scale)
        value = entropy(logit)
        assert_finite(value, logit)
        assert (value >= -1e-6).all() and (value <= torch.tensor(batch.size[2]).log() + 1e-5).all()

    @many
    @given(
        batch=batches(),
        softcap=st.sampled_from([None, 30.]),
        masked=st.booleans(),
        kept=st.booleans(),
        trained=st.tuples(st.booleans(), st.booleans(), st.booleans())
    )
    def test_linear_log_prob(self, batch, softcap, masked, kept, trained):
        rows, tokens, vocabulary = batch.size
        hidden = batch.number(rows, 3, tokens, scale=batch.scale).transpose(1, 2)  # (B, S, H), not contiguous
        weight, bias = batch.number(3, vocabulary).T, batch.number(vocabulary)
        leaves = [x.requires_grad_(t) for x, t in zip((hidden, weight, bias), trained)]
        ids = torch.stack([batch.action, torch.full_like(batch.action, -1)], dim=-1) if kept else None
        mask = batch.weight if masked else None
        logp, h = linear_log_prob(
            hidden, weight, batch.action, mask, bias, kept=ids, softcap=softcap, return_entropy=True
        )
        assert_finite(torch.stack([logp, h]), *leaves)
        assert (h >= -1e-4).all() and (h <= torch.tensor(vocabulary).log() + 1e-4).all()
        assert not kept or (logp.abs() < 1e-6).all()  # the only token that was kept

    @pytest.mark.parametrize('kind', DIVERGENCES)
    @many
    @given(batch=batches(), softcap=st.sampled_from([None, 30.]), masked=st.booleans())
    def test_linear_divergence(self, kind, batch, softcap, masked):
        rows, tokens, vocabulary = batch.size
        shapes = ((rows, tokens, 3), batch.scale), ((vocabulary, 3), 1.), ((vocabulary, ), 1.)
        student, teacher = (
            LinearOutput(*(batch.number(*shape, scale=scale) for shape, scale in shapes), softcap=softcap)
            for _ in range(2)
        )
        leaves = [x.requires_grad_() for x in student[:3]]
        found, kl = linear_divergence(student, teacher, batch.weight if masked else None, kind)
        assert_finite(torch.stack([found, kl]), *leaves)
        least = -1e-4 - 1e-6 * batch.scale
        assert (found >= least).all() and (kl >= least).all()

    @pytest.mark.parametrize('kl_type', KL_TYPES)
    @many
    @given(batch=batches())
    def test_kl(self, kl_type, batch):
        new, ref = (batch.number(*batch.size[:2], scale=batch.scale).requires_grad_() for _ in range(2))
        assert_finite(kl_estimate(new, ref, kl_type), new, ref)
        assert_finite(straight_through_kl(new, ref, kl_type), new, ref)
        assert_finite(calculate_kl_div(new - ref, kl_type), new, ref)
        logit_new, logit_ref = batch.logit(), batch.logit().detach().nan_to_num(neginf=-1e4)
        assert_finite(exact_kl(logit_new, logit_ref), logit_new)

    @pytest.mark.parametrize('preset', sorted(LOSS_PRESETS))
    @many
    @given(
        batch=batches(),
        kl_type=st.sampled_from(KL_TYPES),
        on_policy=st.booleans(),
        reference=st.booleans(),
        corrected=st.booleans(),
        per_token=st.booleans()
    )
    def test_grpo(self, preset, batch, kl_type, on_policy, reference, corrected, per_token):
        new, old, ref = batch.logit(), None if on_policy else batch.logit(), batch.logit() if reference else None
        adv = batch.number(*batch.size[:2] if per_token else batch.size[:1], scale=10.)
        loss, info = grpo_policy_error(
            grpo_policy_data(new, old, ref, batch.action, adv, batch.weight, torch.zeros(len(adv), dtype=torch.long)),
            config=LOSS_PRESETS[preset],
            beta=0.1 if reference else 0,
            kl_type=kl_type,
            kl_ratio_correction=corrected,
            max_length=max(batch.size[1], 1)
        )
        assert_finite(loss, new, old, ref)
        metrics = list(info.metrics().values())
        assert torch.isfinite(torch.tensor(metrics, dtype=torch.float64)).all(), info.metrics()
        if not batch.weight.any():
            assert loss == 0 and not any(metrics)

    @pytest.mark.parametrize('options', [dict(), dict(dual_clip=3.), dict(entropy_bonus=False)], ids=str)
    @many
    @given(batch=batches(), reference=st.booleans())
    def test_ppo(self, options, batch, reference):
        new, old, ref = batch.logit(), batch.logit(), batch.logit() if reference else None
        value, value_old, adv, target = (batch.number(*batch.size[:2], scale=10.) for _ in range(4))
        loss, info = ppo_error(
            ppo_data(new, old, batch.action, value.requires_grad_(), value_old, adv, target, batch.weight, ref),
            kl_type='k3',
            log_prob_fn=efficient_method,
            **options
        )
        for part in loss:
            assert_finite(part, new, value, ref)
        assert all(x == x and abs(x) < float('inf') for x in info)

    @many
    @given(batch=batches(), scale=SCALES)
    def test_ppo_loss(self, batch, scale):
        shape = batch.size[:2]
        old, new, adv, value_old, value, target = (batch.number(*shape, scale=scale).float() for _ in range(6))
        mask = batch.weight.bool()
        outputs = PPOLoss()(old, new.requires_grad_(), adv, value_old, value.requires_grad_(), target, mask, mask)
        assert_finite(outputs[0], new, value)

    @pytest.mark.parametrize('method', ADVANTAGE_METHODS)
    @many
    @given(
        reward=st.lists(st.sampled_from([0., 1., -1., 0.1, 1e-12, 1e6, 1e6 + 1, -3e5, 1e25]), max_size=9),
        seed=st.integers(0, 99),
        groups=st.integers(1, 4),
        dtype=st.sampled_from([torch.float32, torch.float64]),
        eps=st.sampled_from([0., 1e-8, 1e-4])
    )
    def test_advantage(self, method, reward, seed, groups, dtype, eps):
        generator = torch.Generator().manual_seed(seed)
        group = torch.randint(-groups, groups, (len(reward), ), generator=generator)
        length = torch.randint(0, 5, (len(reward), ), generator=generator)
        adv = group_advantage(torch.tensor(reward, dtype=dtype), group, method, eps, length)
        assert torch.isfinite(adv).all() and adv.shape == (len(reward), )
