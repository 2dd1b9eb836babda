"""The divergences from a teacher, against plain sums over the vocabulary."""
import pytest
import torch

from ding_grpo.rl_utils import (
    DIVERGENCES, LinearOutput, distillation_data, distillation_error, linear_divergence, sampled_divergence
)
from tests.rl_utils.textbook import allocations

B, S, H, V = 2, 3, 4, 7


def outputs(dtype=torch.float64, **head):
    """The outputs of a student and of a wider teacher, with a bias each."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(0)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    student = LinearOutput(*(x.requires_grad_() for x in (randn(B, S, H), randn(V, H), randn(V))), **head)
    return student, LinearOutput(randn(B, S, H + 1), randn(V, H + 1), randn(V), 2., 3.)


def log_probs(output, temperature=1.):
    logit = output.hidden @ output.weight.T * output.scale
    logit = logit if output.bias is None else logit + output.bias * output.scale
    cap = output.softcap
    return ((logit if cap is None else cap * torch.tanh(logit / cap)) / temperature).log_softmax(-1)


def plain(a, b, kind, mix=0.5):
    """The formulas of the papers, with torch's own KL, from log p and log q of the whole vocabulary."""

    def kl(x, y):
        return torch.nn.functional.kl_div(y, x, reduction='none', log_target=True).sum(-1)

    if kind == 'jsd':
        m = (mix * b.exp() + (1 - mix) * a.exp()).log()
        return mix * kl(b, m) + (1 - mix) * kl(a, m)
    return kl(a, b) if kind == 'reverse_kl' else kl(b, a)


@pytest.mark.usefixtures('tile')
@pytest.mark.parametrize('kind', DIVERGENCES)
class TestLinearDivergence:

    @pytest.mark.parametrize(
        'head, mix, temperature, chunk_size',
        [(dict(), 0.5, 1., None), (dict(scale=0.5), 0.1, 0.6, 4), (dict(softcap=1.5), 0.1, 0.6, 1)],
        ids=str
    )
    def test_equals_the_plain_sum_with_its_gradient(self, kind, head, mix, temperature, chunk_size):
        student, teacher = outputs(**head)
        found, kl = linear_divergence(student, teacher, None, kind, mix, temperature, chunk_size)
        a, b = log_probs(student, temperature), log_probs(teacher, temperature)
        expected = plain(a, b, kind, mix)
        assert torch.allclose(found, expected, rtol=0, atol=1e-12) and (found > 0).all()
        assert torch.allclose(kl, plain(a, b, 'reverse_kl'), rtol=0, atol=1e-12) and not kl.requires_grad
        upstream = torch.randn(B, S, dtype=torch.float64)
        for x, y in zip(*(torch.autograd.grad((out * upstream).sum(), student[:3]) for out in (found, expected))):
            assert torch.allclose(x, y, rtol=0, atol=1e-12)

    def test_rounded_factors(self, kind):
        given = [x._replace(rounded=True) for x in outputs()]
        exact = [x._replace(**{k: getattr(x, k).bfloat16().double() for k in ('hidden', 'weight')}) for x in outputs()]
        for a, b in zip(*(linear_divergence(*pair, None, kind) for pair in (given, exact))):
            assert torch.allclose(a, b, atol=1e-12)

    def test_masked_positions_are_zero_and_reach_no_gradient(self, kind):
        student, teacher = outputs()
        mask = torch.tensor([[1, 0, 1], [0, 0, 1]])
        with torch.no_grad():
            student.hidden[mask == 0] = float('nan')
            teacher.hidden[mask == 0] = float('nan')
        divergence, kl = linear_divergence(student, teacher, mask, kind)
        for x in (divergence, kl):
            assert (x[mask == 0] == 0).all() and (x[mask == 1] > 0).all()
        divergence.sum().backward()
        assert (student.hidden.grad[mask == 0] == 0).all() and student.weight.grad.isfinite().all()
        nothing, _ = linear_divergence(student, teacher, torch.zeros(B, S), kind)
        assert torch.equal(nothing, torch.zeros_like(nothing)) and nothing.requires_grad

    def test_only_the_student_learns_and_its_output_layer_may_be_frozen(self, kind):
        student, teacher = outputs()
        teacher = teacher._replace(weight=teacher.weight.requires_grad_(), hidden=teacher.hidden.requires_grad_())
        linear_divergence(student, teacher, None, kind)[0].sum().backward()
        assert teacher.weight.grad is None and teacher.hidden.grad is None and student.weight.grad.any()
        frozen = student._replace(weight=student.weight.detach(), bias=student.bias.detach())
        found, = torch.autograd.grad(linear_divergence(frozen, teacher, None, kind)[0].sum(), student.hidden)
        assert torch.equal(found, student.hidden.grad)

    def test_of_itself_it_is_zero_without_a_gradient(self, kind):
        student, _ = outputs(torch.float32)
        found, _ = linear_divergence(student, LinearOutput(*student), None, kind)
        gradients = torch.autograd.grad(found.sum(), student[:3])
        assert found.abs().max() < 1e-6 and all(x.abs().max() < 1e-6 for x in gradients)

    @pytest.mark.parametrize('which', [0, 1], ids=['student', 'teacher'])
    def test_tokens_that_one_of_them_excludes(self, kind, which):
        """0 times infinity gave NaN."""
        both = list(outputs())
        bias = both[which].bias.detach().clone()
        bias[2] = float('-inf')
        both[which] = both[which]._replace(bias=bias)
        found, _ = linear_divergence(*both, None, kind)
        gradients = torch.autograd.grad(found.sum(), both[0][:2])
        assert found.isfinite().all() and all(x.isfinite().all() for x in gradients)

    def test_half_types_are_normalised_in_float32(self, kind):
        student, teacher = outputs(torch.bfloat16)
        found, _ = linear_divergence(student, teacher, None, kind)
        found.sum().backward()
        assert found.dtype == torch.float32 and student.weight.grad.dtype == torch.bfloat16
        wide = [LinearOutput(*(x.detach().double() for x in output[:3]), *output[3:]) for output in (student, teacher)]
        assert torch.allclose(found.double(), linear_divergence(*wide, None, kind)[0], atol=0.1)


@pytest.mark.parametrize('kind', DIVERGENCES)
def test_float32_to_a_millionth(kind):
    """The products go through another library, in two tiles of tokens by two of the vocabulary."""
    torch.manual_seed(0)
    student = LinearOutput(torch.randn(1, 2100, 64), torch.randn(1100, 64) * 0.1)
    teacher = LinearOutput(torch.randn(1, 2100, 32), torch.randn(1100, 32) * 0.1)
    leaves = [x.requires_grad_() for x in student[:2]]
    wide = [x.detach().double().requires_grad_() for x in leaves]
    of_teacher = LinearOutput(*(x.double() for x in teacher[:2]))
    expected = plain(log_probs(LinearOutput(*wide)), log_probs(of_teacher), kind)
    found, _ = linear_divergence(student, teacher, None, kind)
    assert (found.double() - expected).abs().max() < 1e-6
    grads = torch.autograd.grad(found.mean(), leaves), torch.autograd.grad(expected.mean(), wide)
    for x, y in zip(*grads):
        assert (x.double() - y).abs().max() < 1e-6 * max(y.abs().max().item(), 1)


def test_logits_of_all_tokens_never_exist():
    student = LinearOutput(*(torch.randn(*shape).requires_grad_() for shape in ((4, 512, 8), (4096, 8))))
    teacher = LinearOutput(torch.randn(4, 512, 16), torch.randn(4096, 16))
    sizes = allocations(
        lambda: torch.autograd.grad(linear_divergence(student, teacher, None, 'jsd')[0].sum(), student[:2])
    )
    # a tile; all logits of one model are 4 of them
    assert 2048 * 1024 * 4 <= max(sizes) < 2 * 2048 * 1024 * 4


@pytest.mark.parametrize('kind', DIVERGENCES)
class TestSampledDivergence:

    def test_expectations_are_the_divergence_and_its_gradient(self, kind):
        """By enumeration of the sampled token, under another policy than the trained one."""
        z = torch.randn(V, dtype=torch.float64).requires_grad_()
        p, q, old = z.log_softmax(-1), *torch.randn(2, V, dtype=torch.float64).log_softmax(-1)
        value, kl = sampled_divergence(p, p.detach(), q, kind, 0.3)
        expected = plain(p, q, kind, 0.3)
        assert torch.allclose((p.exp() * value).sum(), expected) and (value >= 0).all()
        assert torch.allclose((p.exp() * kl).sum(), plain(p, q, 'reverse_kl'))
        gradient, = torch.autograd.grad(expected, z, retain_graph=True)
        value, _ = sampled_divergence(p, old, q, kind, 0.3)
        found, = torch.autograd.grad((old.exp() * value).sum(), z)
        assert torch.allclose(found, gradient, rtol=0, atol=1e-12)

    def test_extreme_ratios_stay_finite(self, kind):
        logp = torch.tensor([-1e-3, -300., -5.]).requires_grad_()
        value, _ = sampled_divergence(logp, torch.tensor([-200., -1., -5.]), torch.tensor([-300., -1e-3, -5.]), kind)
        gradient, = torch.autograd.grad(value.sum(), logp)
        assert value.isfinite().all() and gradient.isfinite().all() and value[2] == 0 == gradient[2]


@pytest.mark.parametrize(
    'options, expected',
    [
        # rows have the means 2 and 5, the three tokens the sum 9
        (dict(), 3.5),
        (dict(reduction='token'), 3.),
        (dict(reduction='constant', max_length=3), 1.5),
        (dict(reduction='token', num_tokens=6), 1.5),
    ]
)
def test_error_by_hand(options, expected):
    divergence = torch.tensor([[1., 3., 9.], [5., 9., 9.]], requires_grad=True)
    weight = torch.tensor([[1., 1., 0.], [1., 0., 0.]])
    loss, info = distillation_error(distillation_data(divergence, divergence.detach() * 2, weight), **options)
    assert loss.item() == expected and info.teacher_kl == 6.
