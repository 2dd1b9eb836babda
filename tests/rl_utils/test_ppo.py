import json
import os
from collections import namedtuple

import pytest
import torch
from ding.rl_utils import ppo as ding_ppo

from ding_grpo.rl_utils import (
    efficient_method, less_efficient_method, naive_method, ppo_data, ppo_data_continuous, ppo_error,
    ppo_error_continuous, ppo_policy_data, ppo_policy_data_continuous, ppo_policy_error, ppo_policy_error_continuous,
    ppo_value_data, ppo_value_error, shape_fn_ppo
)

DING = json.load(open(os.path.join(os.path.dirname(__file__), '..', 'data', 'ding_main_ppo.json')))
LONG = ('action', )


def tensor(name):
    value = DING['inputs'][name]
    if isinstance(value, dict):
        return {k: torch.tensor(v, dtype=torch.float64) for k, v in value.items()}
    return torch.tensor(value, dtype=torch.long if name in LONG else torch.float64)


def fields(case):
    """The arguments of a recorded case, and what it has gradients for."""
    data = {name: tensor(name) for name in ('value_new', 'value_old', 'adv', 'return_', 'weight')}
    if not case['use_weight']:
        data['weight'] = None
    data['value_new'].requires_grad_()
    pretrained = 'logit_pretrained' if case['fn'] == 'ppo_error' else 'mu_sigma_pretrained'
    if case['use_pretrained']:
        data['logit_pretrained'] = tensor(pretrained)
    if case['fn'] == 'ppo_error':
        data.update({name: tensor(name) for name in ('logit_new', 'logit_old', 'action')})
        return data, data['logit_new'].requires_grad_(), case['grad_logit_new']
    data.update(action=tensor('action_continuous'), **{n: tensor(n) for n in ('mu_sigma_new', 'mu_sigma_old')})
    return data, data['mu_sigma_new']['mu'].requires_grad_(), case['grad_mu_new']


@pytest.mark.unittest
@pytest.mark.usefixtures('on_device')
class TestAgainstDIEngineMain:

    @pytest.mark.parametrize('case', DING['cases'], ids=range(len(DING['cases'])))
    def test_loss_gradient_and_metrics(self, case):
        data, leaf, grad = fields(case)
        error, kind = dict(
            ppo_error=(ppo_error, ppo_data), ppo_error_continuous=(ppo_error_continuous, ppo_data_continuous)
        )[case['fn']]
        loss, info = error(kind(**data), mask_metrics=False, **case['kwargs'])
        # the recorded gradients are of DI-engine's total, with these coefficients
        (loss.policy_loss + 0.5 * loss.value_loss - 0.01 * loss.entropy_loss + 0.1 * loss.kl_div).backward()
        for name, value in case['loss'].items():
            assert getattr(loss, name).item() == pytest.approx(value, abs=1e-9), name
        for name, value in case['info'].items():
            assert getattr(info, name) == pytest.approx(value, abs=1e-6), name
        assert torch.allclose(leaf.grad, torch.tensor(grad, dtype=torch.float64), atol=1e-8, rtol=0)
        expected = torch.tensor(case['grad_value_new'], dtype=torch.float64)
        assert torch.allclose(data['value_new'].grad, expected, atol=1e-8, rtol=0)

    def test_both_releases_of_di_engine(self, monkeypatch):
        """Main's namedtuples have one field more, the release's have not; both must be filled."""
        case = DING['cases'][0]
        expected = ppo_error(ppo_data(**fields(case)[0]), **case['kwargs'])
        seen = []

        def main(data, clip_ratio, dual_clip):
            seen.append(data.logit_pretrained)
            return installed(kind(*data[:len(kind._fields)]), clip_ratio, dual_clip)

        installed, kind = ding_ppo.ppo_policy_error, ding_ppo.ppo_policy_data
        monkeypatch.setattr(
            ding_ppo, 'ppo_policy_data', namedtuple('ppo_policy_data', [*kind._fields[:5], 'logit_pretrained'])
        )
        monkeypatch.setattr(ding_ppo, 'ppo_policy_error', main)
        found = ppo_error(ppo_data(**fields(case)[0]), **case['kwargs'])
        assert seen == [None] and found == expected

    def test_di_engines_own_data_will_do(self):
        data, _, _ = fields(dict(DING['cases'][0], use_pretrained=False))
        names = ding_ppo.ppo_data._fields
        loss, _ = ppo_error(ding_ppo.ppo_data(*(data.get(n) for n in names)))
        assert loss.policy_loss == ppo_error(ppo_data(**data))[0].policy_loss and loss.kl_div == 0

    def test_entropy_bonus(self):
        data = ppo_policy_data(torch.randn(3, 4), torch.randn(3, 4), torch.tensor([0, 1, 2]), torch.randn(3), None)
        assert ppo_policy_error(data)[0].entropy_loss > 0
        assert ppo_policy_error(data, entropy_bonus=False)[0].entropy_loss == 0

    def test_agents(self):
        logit = torch.randn(3, 2, 4)
        action = torch.randint(0, 4, (3, 2))
        loss, _ = ppo_policy_error(ppo_policy_data(logit, logit, action, torch.ones(3), torch.ones(3), logit))
        assert loss.policy_loss.item() == pytest.approx(-1) and loss.kl_div == 0

    def test_another_namedtuple_is_refused(self):
        from ding_grpo.rl_utils import grpo_policy_data
        logit = torch.randn(2, 3, 4)
        data = grpo_policy_data(logit, logit, logit, torch.zeros(2, 3).long(), torch.ones(2, 3), None)
        with pytest.raises(ValueError, match='grpo_policy_data.*unknown field logit_ref'):
            ppo_policy_error(data, log_prob_fn=naive_method)

    @pytest.mark.parametrize('name', ['logit_new', 'logit_old', 'action', 'adv', 'value_new', 'value_old', 'return_'])
    def test_a_field_that_is_left_out_is_named(self, name):
        data, _, _ = fields(DING['cases'][0])
        with pytest.raises(ValueError, match=name):
            ppo_error(ppo_data(**dict(data, **{name: None})))

    @pytest.mark.parametrize('part', ['mu', 'sigma'])
    def test_mu_and_sigma_of_two_shapes(self, part):
        old = dict(mu=torch.zeros(4, 1), sigma=torch.ones(4, 1))
        data = ppo_policy_data_continuous(
            dict(old), dict(old, **{part: torch.ones(4)}), torch.zeros(4, 1), torch.zeros(4), None
        )
        with pytest.raises(ValueError, match='mu_sigma_old'):
            ppo_policy_error_continuous(data)

    def test_shape_fn(self):
        data = ppo_data(torch.zeros(3, 4), *[None] * 8)
        assert shape_fn_ppo([data], {}) == shape_fn_ppo([], dict(data=data)) == (3, 4)


def discrete(seed=0, dtype=torch.float64, rows=6):
    torch.manual_seed(seed)
    logits = [torch.randn(rows, 4, dtype=dtype) for _ in range(3)]
    return ppo_policy_data(
        logits[0].requires_grad_(), logits[1], torch.randint(0, 4, (rows, )), torch.randn(rows, dtype=dtype),
        (torch.arange(rows) % 3 > 0).to(dtype), logits[2]
    )


def continuous(seed=0, rows=6):
    torch.manual_seed(seed)
    new, old, pretrained = (
        dict(mu=torch.randn(rows, 3).double(), sigma=torch.rand(rows, 3).double() + 0.5) for _ in range(3)
    )
    new['mu'].requires_grad_()
    return ppo_policy_data_continuous(
        new, old,
        torch.randn(rows, 3).double(),
        torch.randn(rows).double(), (torch.arange(rows) % 3 > 0).double(), pretrained
    )


def without_padding(data):
    rows = data.weight != 0
    return type(data)(*({k: v[rows] for k, v in x.items()} if isinstance(x, dict) else x[rows] for x in data))


@pytest.mark.unittest
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
        assert [x.item() for x in masked] == pytest.approx([x.item() for x in clean_loss]) and info_too == info
        assert error(data) == (loss, clean_info)

    def test_nothing_counts(self, make, error):
        data = make()._replace(weight=torch.zeros(6))
        loss, info = error(data, mask_loss=True, mask_metrics=True)
        sum(loss).backward()
        assert all(x == 0 for x in loss) and all(x == 0 for x in info)

    def test_gradcheck(self, make, error):
        data = make()
        name = data._fields[0]
        leaf = data[0] if make is discrete else data[0]['mu']

        def total(x):
            field = x if make is discrete else dict(data[0], mu=x)
            return sum(error(data._replace(**{name: field}), kl_type='k3', mask_loss=True)[0])

        assert torch.autograd.gradcheck(total, (leaf, ))

    @pytest.mark.parametrize(
        'change, options, message', [
            (dict(adv=torch.zeros(5)), {}, r'adv \(5,\)'),
            (dict(weight=torch.zeros(6, 2)), {}, r'weight \(6, 2\)'),
            ({}, dict(kl_type='k4'), "kl_type = 'k4'"),
            ({}, dict(dual_clip=0.5), 'dual_clip = 0.5'),
            ({}, dict(clip_ratio=-1), 'clip_ratio = -1'),
        ]
    )
    def test_wrong_use(self, make, error, change, options, message):
        with pytest.raises(ValueError, match=message):
            error(make()._replace(**change), **options)


@pytest.mark.unittest
class TestDualClip:

    def one(self, ratio, adv, dual_clip=3., **options):
        """mu 0 and 1, sigma 1: log ratio of the action a is a - 1/2."""
        action = torch.tensor([[ratio]]).log() + 0.5
        new, old = (dict(mu=torch.tensor([[mu]]), sigma=torch.ones(1, 1)) for mu in (1., 0.))
        data = ppo_policy_data_continuous(new, old, action, torch.tensor([adv]), None)
        return ppo_policy_error_continuous(data, dual_clip=dual_clip, **options)[0].policy_loss.item()

    def test_negative_advantages_by_hand(self):
        for options in ({}, dict(dual_clip_negative=True)):
            assert self.one(5., -1., **options) == pytest.approx(3)  # not 5

    def test_a_bound_of_one_by_hand(self):
        for options in ({}, dict(dual_clip_negative=True)):
            assert self.one(5., -1., dual_clip=1., **options) == pytest.approx(1)
        # DI-engine: max(min(r A, clip(r) A), A), which only ratios above 1 exceed
        assert self.one(1.1, 1., dual_clip=1.) == pytest.approx(-1.1)
        assert self.one(0.5, 1., dual_clip=1.) == pytest.approx(-1)
        assert self.one(0.5, 1., dual_clip=1., dual_clip_negative=True) == pytest.approx(-0.5)

    def test_positive_advantages_by_hand(self):
        assert self.one(1.1, 1.) == pytest.approx(-3)  # DI-engine: the bound takes the objective's place
        assert self.one(1.1, 1., dual_clip_negative=True) == pytest.approx(-1.1)

    def test_a_ratio_out_of_range_has_the_gradient_zero(self):
        new, old = (dict(mu=torch.tensor([[mu]]), sigma=torch.tensor([[0.01]])) for mu in (1., -1.))
        new['mu'].requires_grad_()
        data = ppo_policy_data_continuous(new, old, torch.tensor([[1.]]), torch.tensor([1.]), None)
        loss, _ = ppo_policy_error_continuous(data, dual_clip_negative=True)
        loss.policy_loss.backward()
        assert loss.policy_loss.item() == pytest.approx(-1.2) and new['mu'].grad.item() == 0

    def test_mixed_signs_with_weights(self):
        data = continuous()
        loss = ppo_policy_error_continuous(data, dual_clip=1.5, dual_clip_negative=True)[0].policy_loss
        parts = [
            ppo_policy_error_continuous(
                type(data)(
                    *({k: v[i:i + 1]
                       for k, v in x.items()} if isinstance(x, dict) else x[i:i + 1] for x in data)
                ),
                dual_clip=1.5 if data.adv[i] < 0 else None
            )[0].policy_loss for i in range(6)
        ]
        assert loss.item() == pytest.approx((sum(parts) / 6).item())


@pytest.mark.unittest
class TestValue:

    def test_by_hand_and_masked(self):
        # clipped to 0.2: errors 1 and 0.8^2, the larger counts; padding of error 25
        data = ppo_value_data(*(torch.tensor(x) for x in ([0., 5.], [0.4, 5.], [1., 0.], [1., 0.])))
        assert ppo_value_error(data).item() == pytest.approx(0.25)
        assert ppo_value_error(data, mask_loss=True).item() == pytest.approx(0.5)
        assert ppo_value_error(data._replace(weight=torch.zeros(2)), mask_loss=True) == 0

    def test_gradcheck(self):
        new, old, target = (torch.randn(5).double().requires_grad_() for _ in range(3))
        assert torch.autograd.gradcheck(lambda *x: ppo_value_error(ppo_value_data(*x, None)), (new, old, target))

    def test_wrong_shape(self):
        with pytest.raises(ValueError, match='return_'):
            ppo_value_error(ppo_value_data(torch.zeros(2), torch.zeros(2), torch.zeros(3), None))


@pytest.mark.unittest
class TestLanguageModel:

    def data(self, adv_scale=1.):
        torch.manual_seed(0)
        logits = [torch.randn(3, 4, 5, dtype=torch.float64) for _ in range(3)]
        weight = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]])
        return ppo_policy_data(
            logits[0].requires_grad_(), logits[1], torch.randint(0, 5, (3, 4)),
            torch.randn(3, 4).double() * adv_scale, weight, logits[2]
        )

    @pytest.mark.parametrize('method', [naive_method, efficient_method, less_efficient_method])
    @pytest.mark.parametrize('options', [dict(), dict(dual_clip=1.1, kl_type='k3'), dict(kl_type='k2')], ids=str)
    def test_equals_di_engines_way_on_the_tokens_that_count(self, method, options):
        data = self.data()
        loss, info = ppo_policy_error(data, log_prob_fn=method, **options)
        clean, clean_info = ppo_policy_error(without_padding(data), **options)
        assert [x.item() for x in loss] == pytest.approx([x.item() for x in clean], abs=1e-9)
        assert list(info) == pytest.approx(list(clean_info), abs=1e-6)
        grads = [torch.autograd.grad(sum(x), data.logit_new)[0] for x in (loss, clean)]
        assert torch.allclose(*grads, atol=1e-9)

    def test_and_with_padding_too_where_asked(self):
        options = dict(mask_loss=False, mask_metrics=False)
        loss, info = ppo_policy_error(self.data(), log_prob_fn=efficient_method, **options)
        expected, expected_info = ppo_policy_error(self.data(), mask_metrics=False)
        assert [x.item() for x in loss] == pytest.approx([x.item() for x in expected], abs=1e-9)
        assert list(info) == pytest.approx(list(expected_info), abs=1e-6)

    def test_padding_reaches_nothing(self):
        data = self.data()
        clean, clean_info = ppo_policy_error(data, log_prob_fn=efficient_method)
        with torch.no_grad():
            data.logit_old[data.weight == 0] = float('nan')
            data.logit_new[data.weight == 0] = float('nan')
            data.adv[data.weight == 0] = float('inf')
        loss, info = ppo_policy_error(data, log_prob_fn=efficient_method)
        assert info == clean_info and [x.item() for x in loss] == [x.item() for x in clean]
        assert torch.isfinite(torch.autograd.grad(loss.policy_loss + loss.kl_div, data.logit_new)[0]).all()

    def test_with_values(self):
        data, value = self.data(), torch.randn(3, 4).double()
        loss, _ = ppo_error(
            ppo_data(*data[:3], value, value, data.adv, value + 2, data.weight, data.logit_pretrained),
            entropy_bonus=False,
            log_prob_fn=efficient_method
        )
        assert loss.value_loss.item() == pytest.approx(2) and loss.entropy_loss == 0  # (2^2) / 2 on each token

    def test_a_ratio_out_of_range_is_clipped_without_nan(self):
        new = torch.tensor([[[1e4, 0.]]], requires_grad=True)
        data = ppo_policy_data(new, -new.detach(), torch.tensor([[0]]), torch.ones(1, 1), None)
        loss, _ = ppo_policy_error(data, log_prob_fn=efficient_method)
        sum(loss).backward()
        assert loss.policy_loss.item() == pytest.approx(-1.2) and torch.equal(new.grad, torch.zeros(1, 1, 2))

    def test_one_action_a_row(self):
        loss, info = ppo_policy_error(discrete(), log_prob_fn=efficient_method)
        clean, clean_info = ppo_policy_error(without_padding(discrete()))
        assert [x.item() for x in loss] == pytest.approx([x.item() for x in clean])
        assert list(info) == pytest.approx(list(clean_info))

    def test_usual_padding_of_actions(self):
        data = self.data()
        clean, _ = ppo_policy_error(data, log_prob_fn=efficient_method)
        data.action[data.weight == 0] = -100
        loss, _ = ppo_policy_error(data, log_prob_fn=efficient_method)
        assert loss.policy_loss == clean.policy_loss
        data.action[0, 0] = -100
        with pytest.raises(ValueError, match='action from -100'):
            ppo_policy_error(data, log_prob_fn=efficient_method)
