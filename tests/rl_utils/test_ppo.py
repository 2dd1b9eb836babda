import pytest
import torch

from ding_grpo.rl_utils import (
    efficient_method, less_efficient_method, naive_method, ppo_data, ppo_data_continuous, ppo_error,
    ppo_error_continuous, ppo_policy_data, ppo_policy_data_continuous, ppo_policy_error, ppo_policy_error_continuous,
    ppo_value_data, ppo_value_error, shape_fn_ppo
)
from tests.rl_utils.peers import assert_gradient, double, recorded

DING = recorded('ding_main_ppo')
WHOLE = dict(ppo_error=(ppo_error, ppo_data), ppo_error_continuous=(ppo_error_continuous, ppo_data_continuous))


def values(loss):
    return [x.item() for x in loss]


def field(name):
    value = DING['inputs'][name]
    if isinstance(value, dict):
        return {k: double(v) for k, v in value.items()}
    return torch.tensor(value) if name == 'action' else double(value)


def fields(case):
    """The data of a recorded case, and what it has gradients for."""
    data = {name: field(name) for name in ('value_new', 'value_old', 'adv', 'return_', 'weight')}
    if not case['use_weight']:
        data['weight'] = None
    data['value_new'].requires_grad_()
    kind, names = 'mu_sigma', {'action': 'action_continuous'}
    if case['fn'] == 'ppo_error':
        kind, names = 'logit', {'action': 'action'}
    names.update({f'{kind}_{policy}': f'{kind}_{policy}' for policy in ('new', 'old')})
    if case['use_pretrained']:
        names['logit_pretrained'] = f'{kind}_pretrained'
    data.update({name: field(source) for name, source in names.items()})
    leaf = data['logit_new'] if kind == 'logit' else data['mu_sigma_new']['mu']
    return data, leaf.requires_grad_(), case['grad_logit_new' if kind == 'logit' else 'grad_mu_new']


@pytest.mark.usefixtures('on_device')
class TestAgainstDIEngineMain:

    @pytest.mark.parametrize('case', DING['cases'], ids=range(len(DING['cases'])))
    def test_loss_gradient_and_metrics(self, case):
        data, leaf, grad = fields(case)
        error, kind = WHOLE[case['fn']]
        loss, info = error(kind(**data), mask_metrics=False, **case['kwargs'])
        # the recorded gradients are of DI-engine's total, with these coefficients
        (loss.policy_loss + 0.5 * loss.value_loss - 0.01 * loss.entropy_loss + 0.1 * loss.kl_div).backward()
        assert {name: getattr(loss, name).item() for name in case['loss']} == pytest.approx(case['loss'], abs=1e-9)
        assert {name: getattr(info, name) for name in case['info']} == pytest.approx(case['info'], abs=1e-6)
        assert_gradient(leaf, grad)
        assert_gradient(data['value_new'], case['grad_value_new'])

    def test_shape_fn(self):
        data = ppo_data(torch.zeros(3, 4), *[None] * 8)
        assert shape_fn_ppo([data], {}) == shape_fn_ppo([], dict(data=data)) == (3, 4)


def discrete(rows=6):
    torch.manual_seed(0)
    new, old, pretrained = (torch.randn(rows, 4, dtype=torch.float64) for _ in range(3))
    action, adv = torch.randint(0, 4, (rows, )), torch.randn(rows).double()
    return ppo_policy_data(new.requires_grad_(), old, action, adv, (torch.arange(rows) % 3 > 0).double(), pretrained)


def continuous(rows=6):
    torch.manual_seed(0)
    new, old, pretrained = (
        dict(mu=torch.randn(rows, 3).double(), sigma=torch.rand(rows, 3).double() + 0.5) for _ in range(3)
    )
    new['mu'].requires_grad_()
    action, adv = torch.randn(rows, 3).double(), torch.randn(rows).double()
    return ppo_policy_data_continuous(new, old, action, adv, (torch.arange(rows) % 3 > 0).double(), pretrained)


def some(data, rows):
    return type(data)(*({k: v[rows] for k, v in x.items()} if isinstance(x, dict) else x[rows] for x in data))


def without_padding(data):
    return some(data, data.weight != 0)


@pytest.mark.parametrize(
    'make, error', [(discrete, ppo_policy_error), (continuous, ppo_policy_error_continuous)], ids=['discrete', 'cont']
)
class TestWhereDIEngineIsWrong:

    def test_padding_counts_in_the_means_unless_masked(self, make, error):
        data = make()
        clean_loss, clean_info = error(without_padding(data))
        loss, info = error(data, mask_metrics=False)
        assert loss.policy_loss.item() == pytest.approx(clean_loss.policy_loss.item() * 4 / 6)
        assert loss.kl_div != clean_loss.kl_div and info != clean_info
        masked, info_too = error(data, mask_loss=True, mask_metrics=False)
        assert values(masked) == pytest.approx(values(clean_loss)) and info_too == info
        assert error(data) == (loss, clean_info)

    def test_nothing_counts(self, make, error):
        loss, info = error(make()._replace(weight=torch.zeros(6)), mask_loss=True, mask_metrics=True)
        sum(loss).backward()
        assert all(x == 0 for x in (*loss, *info))


class TestDualClip:

    def one(self, ratio, adv, dual_clip=3., **options):
        """mu 0 and 1, sigma 1: log ratio of the action a is a - 1/2."""
        new, old = (dict(mu=torch.tensor([[mu]]), sigma=torch.ones(1, 1)) for mu in (1., 0.))
        data = ppo_policy_data_continuous(new, old, torch.tensor([[ratio]]).log() + 0.5, torch.tensor([adv]), None)
        return ppo_policy_error_continuous(data, dual_clip=dual_clip, **options)[0].policy_loss.item()

    @pytest.mark.parametrize(
        'ratio, adv, bound, of_ding, negative_alone',
        [
            (5., -1., 3., 3, 3),  # not 5
            (5., -1., 1., 1, 1),
            # DI-engine: max(min(r A, clip(r) A), c A), so that for A > 0 the bound takes the objective's place
            (1.1, 1., 3., -3, -1.1),
            (1.1, 1., 1., -1.1, -1.1),  # a bound of 1, which only ratios above 1 exceed
            (0.5, 1., 1., -1, -0.5),
        ]
    )
    def test_by_hand(self, ratio, adv, bound, of_ding, negative_alone):
        assert self.one(ratio, adv, bound) == pytest.approx(of_ding)
        assert self.one(ratio, adv, bound, dual_clip_negative=True) == pytest.approx(negative_alone)

    @pytest.mark.parametrize('options', [dict(), dict(dual_clip_negative=True)], ids=str)
    def test_a_ratio_out_of_range_has_the_gradient_zero(self, options):
        new, old = (dict(mu=torch.tensor([[mu]]), sigma=torch.tensor([[0.01]])) for mu in (1., -1.))
        new['mu'].requires_grad_()
        data = ppo_policy_data_continuous(new, old, torch.tensor([[1.]]), torch.tensor([1.]), None)
        loss, _ = ppo_policy_error_continuous(data, **options)
        loss.policy_loss.backward()
        assert loss.policy_loss.item() == pytest.approx(-1.2) and new['mu'].grad.item() == 0


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_ratios_of_half_types_are_not_bounded_early(dtype):
    new, old = (torch.tensor([[x, 0.]], dtype=dtype) for x in (5., -5.))
    loss, _ = ppo_policy_error((new, old, torch.tensor([0]), torch.tensor([-1.]), None))
    assert loss.policy_loss.item() == pytest.approx(2.718281828 ** 5, rel=0.02)


def test_value_by_hand_and_masked():
    # clipped to 0.2: errors 1 and 0.8^2, the larger counts; padding of error 25
    data = ppo_value_data(*(torch.tensor(x) for x in ([0., 5.], [0.4, 5.], [1., 0.], [1., 0.])))
    assert ppo_value_error(data).item() == pytest.approx(0.25)
    assert ppo_value_error(data, mask_loss=True).item() == pytest.approx(0.5)
    assert ppo_value_error(data._replace(weight=torch.zeros(2)), mask_loss=True) == 0


class TestLanguageModel:

    def setup_method(self):
        torch.manual_seed(0)
        new, old, pretrained = (torch.randn(3, 4, 5, dtype=torch.float64) for _ in range(3))
        weight = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]])
        action, adv = torch.randint(0, 5, (3, 4)), torch.randn(3, 4).double()
        self.data = ppo_policy_data(new.requires_grad_(), old, action, adv, weight, pretrained)

    def error(self, **options):
        return ppo_policy_error(self.data, log_prob_fn=efficient_method, **options)

    @pytest.mark.parametrize(
        'method, options', [
            (naive_method, dict()),
            (efficient_method, dict(dual_clip=1.1, kl_type='k3')),
            (less_efficient_method, dict(kl_type='k2', entropy_bonus=False)),
        ]
    )
    def test_equals_di_engines_way_on_the_tokens_that_count(self, method, options):
        loss, info = ppo_policy_error(self.data, log_prob_fn=method, **options)
        clean, clean_info = ppo_policy_error(without_padding(self.data), **options)
        assert values(loss) == pytest.approx(values(clean), abs=1e-9)
        assert list(info) == pytest.approx(list(clean_info), abs=1e-6)
        grads = [torch.autograd.grad(sum(x), self.data.logit_new)[0] for x in (loss, clean)]
        assert torch.allclose(*grads, atol=1e-9)

    def test_and_with_padding_too_where_asked(self):
        loss, info = self.error(mask_loss=False, mask_metrics=False)
        expected, expected_info = ppo_policy_error(self.data, mask_metrics=False)
        assert values(loss) == pytest.approx(values(expected), abs=1e-9)
        assert list(info) == pytest.approx(list(expected_info), abs=1e-6)

    def test_padding_reaches_nothing(self):
        data, padding = self.data, self.data.weight == 0
        clean, clean_info = self.error()
        with torch.no_grad():
            for x, value in ((data.logit_old, 'nan'), (data.logit_new, 'nan'), (data.adv, 'inf'), (data.action, -100)):
                x[padding] = float(value) if x.is_floating_point() else value
        loss, info = self.error()
        assert info == clean_info and values(loss) == values(clean)
        assert torch.isfinite(torch.autograd.grad(loss.policy_loss + loss.kl_div, data.logit_new)[0]).all()
        data.action[0, 0] = -100  # a token that counts
        with pytest.raises(ValueError, match='action from -100'):
            self.error()
