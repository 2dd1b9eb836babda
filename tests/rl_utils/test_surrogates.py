"""The surrogates of papers against verl and TRL, and their options."""
import json
import math
import os

import pytest
import torch

from ding_grpo.rl_utils import (
    ADVANTAGE_METHODS, BATCH_SURROGATES, LOSS_PRESETS, ROW_SURROGATES, SURROGATES, Limits, LossConfig, clip_surrogate,
    grpo_data, grpo_error, ppo_policy_data, ppo_policy_error, register_surrogate, surrogate_arguments, surrogate_traits
)
from ding_grpo.rl_utils.surrogates import registry

HERE = os.path.join(os.path.dirname(__file__), '..', 'data')
VERL = json.load(open(os.path.join(HERE, 'verl_policy_losses.json')))
TRL = json.load(open(os.path.join(HERE, 'trl_vespo.json')))['cases']
REDUCTIONS = {'token-mean': 'token', 'seq-mean-token-mean': 'sequence', 'seq-mean-token-sum': 'sum'}
OPTIONS = dict(
    dro_beta='beta',
    kl_cov_ratio='share',
    ppo_kl_coef='coefficient',
    clip_cov_ratio='share',
    clip_cov_lb='low',
    clip_cov_ub='high',
)


def tensors(names, source):
    return [torch.tensor(source[name], dtype=torch.float64) for name in names]


def error(new, old, adv, weight=None, **options):
    data = grpo_data(*(torch.tensor(x).double() for x in (new, old)), None, torch.tensor(adv).double(), weight)
    return grpo_error(data, beta=0, **options)[0].item()


@pytest.mark.unittest
@pytest.mark.usefixtures('on_device')
class TestAgainstPeers:

    @pytest.mark.parametrize('case', VERL['losses'], ids=lambda case: f"{case['name']}-{case['aggregation']}")
    def test_verl(self, case):
        new, old, adv, weight = tensors(['logp_new', 'logp_old', 'adv', 'mask'], VERL)
        new.requires_grad_()
        options = dict(case['options'].get('policy_loss', {}))
        cap = case['options'].get('clip_ratio_c')
        loss, _ = grpo_error(
            grpo_data(new, old, None, adv, weight),
            beta=0,
            clip_ratio=case['options'].get('clip_ratio_low', 0.2),
            clip_ratio_high=case['options'].get('clip_ratio_high'),
            surrogate=case['name'],
            surrogate_options={OPTIONS[key]: value
                               for key, value in options.items()} | ({} if cap is None else dict(ratio_cap=cap)),
            reduction=REDUCTIONS[case['aggregation']]
        )
        loss.backward()
        assert loss.item() == pytest.approx(case['loss'], abs=1e-9, rel=0)
        assert torch.allclose(new.grad, torch.tensor(case['grad'], dtype=torch.float64), atol=1e-8, rtol=0)

    def test_all_cases_of_verl(self):
        assert len(VERL['losses']) == 33
        assert {case['name']
                for case in VERL['losses']} == {'dppo_tv', 'dppo_kl', 'geo_mean', 'gpg', 'dro', 'clip_cov', 'kl_cov'}

    @pytest.mark.parametrize('case', TRL, ids=range(len(TRL)))
    def test_vespo_is_trls(self, case):
        new, old, ref, adv, weight = tensors(['logp_new', 'logp_old', 'logp_ref', 'adv', 'mask'], case)
        new.requires_grad_()
        loss, _ = grpo_error(
            grpo_data(new, old, ref, adv, weight),
            beta=case['beta'],
            surrogate='vespo',
            surrogate_options=case['options'],
            reduction='token'
        )
        loss.backward()
        assert loss.item() == pytest.approx(case['loss'], abs=1e-9, rel=0)
        assert torch.allclose(new.grad, torch.tensor(case['grad_logp_new']).double(), atol=1e-8, rtol=0)


@pytest.mark.unittest
class TestByHand:

    def test_dppo_tv(self):
        # probabilities 0.5 -> 0.6 and 0.5 -> 0.4: moved by 0.1 each. A > 0: 1.2 A log 0.6. A < 0: 0.8 A log 0.4.
        new, old = [[math.log(0.6)], [math.log(0.4)]], [[math.log(0.5)], [math.log(0.5)]]
        inside = -(1.2 * 1 * math.log(0.6) + 0.8 * -2 * math.log(0.4)) / 2
        assert error(new, old, [1., -2.], surrogate='dppo_tv', clip_ratio=0.11) == pytest.approx(inside)
        # with a range of 0.09 both have moved too far in the direction of A; against it nothing is too far
        assert error(new, old, [1., -2.], surrogate='dppo_tv', clip_ratio=0.09) == 0
        outside = -(1.2 * -1 * math.log(0.6) + 0.8 * 2 * math.log(0.4)) / 2
        assert error(new, old, [-1., 2.], surrogate='dppo_tv', clip_ratio=0.09) == pytest.approx(outside)
        capped = error(new, old, [1., 0.], surrogate='dppo_tv', clip_ratio=1., surrogate_options=dict(ratio_cap=1.1))
        assert capped == pytest.approx(-1.1 * math.log(0.6) / 2)

    def test_dppo_kl(self):
        # KL of (0.5, 0.5) and (0.6, 0.4): 0.5 log(0.5 / 0.6) + 0.5 log(0.5 / 0.4) = 0.020411
        new, old = [[math.log(0.6)]], [[math.log(0.5)]]
        for clip_ratio, expected in ((0.0205, -1.2 * math.log(0.6)), (0.0203, 0)):
            found = error(new, old, [1.], surrogate='dppo_kl', clip_ratio=clip_ratio)
            assert found == pytest.approx(expected)
        against = error(new, old, [-1.], surrogate='dppo_kl', clip_ratio=0.0203)
        assert against == pytest.approx(1.2 * math.log(0.6))
        certain = error([[0.]], [[0.]], [1.], surrogate='dppo_kl')  # a probability of 1: no other token
        assert certain == 0

    def test_geo_mean_is_a_mean_over_rows_whatever_the_reduction(self):
        # row 1: log r = 0.3, -0.9; A = 1 bounds by 0.2: exp((0.2 - 0.9) / 2). Row 2: log r = -0.3, A = -2 by -0.2.
        new, old = [[0.3, -0.9], [-0.3, 7.]], [[0., 0.], [0., 0.]]
        weight = torch.tensor([[1., 1.], [1., 0.]])
        expected = (-math.exp(-0.35) + 2 * math.exp(-0.2)) / 2
        for reduction in ('sequence', 'token', 'sum', 'constant'):
            found = error(
                new, old, [1., -2.], weight, surrogate='geo_mean', clip_ratio=0.2, reduction=reduction, max_length=9
            )
            assert found == pytest.approx(expected)

    def test_dro(self):
        found = error([[-1.]], [[-1.5]], [2.], surrogate='dro', surrogate_options=dict(beta=0.4))
        assert found == pytest.approx(-(2 * -1 - 0.2 * 0.25))

    def test_cpgd(self):
        # a clipping range of 0.2 bounds log pi by log pi_old + log 1.2 for A > 0 and log 0.8 for A < 0
        old = [[-1.], [-1.], [-1.], [-1.]]
        new = [[-0.5], [-1.5], [-0.5], [-1.5]]
        objectives = [2 * (-1 + math.log(1.2)), 2 * -1.5, -2 * -0.5, -2 * (-1 + math.log(0.8))]
        adv = [2., 2., -2., -2.]
        assert error(new, old, adv, surrogate='cpgd') == pytest.approx(-sum(objectives) / 4)
        # r - 1 - log r = e^0.5 - 1.5 and e^-0.5 - 0.5
        drift = 0.1 * (math.exp(0.5) - 1.5 + math.exp(-0.5) - 0.5) / 2
        found = error(new, old, adv, surrogate='cpgd', surrogate_options=dict(drift=0.1))
        assert found == pytest.approx(-sum(objectives) / 4 + drift)

    def test_cpgd_stops_outside_the_range_in_the_direction_of_the_advantage(self):
        new = torch.tensor([[-0.5], [-1.5], [-0.5], [-1.5]]).double().requires_grad_()
        data = grpo_data(new, torch.full((4, 1), -1.).double(), None, torch.tensor([2., 2., -2., -2.]).double(), None)
        grpo_error(data, beta=0, surrogate='cpgd')[0].backward()
        assert new.grad.flatten().tolist() == [0, -0.5, 0.5, 0]

    def test_dual_clip_is_that_of_ppo_and_equals_delta(self):
        torch.manual_seed(0)
        logit, other = (torch.randn(6, 4, 3).double() * 2 for _ in range(2))
        action, adv = torch.randint(0, 3, (6, 4)), torch.randn(6, 4).double()
        ppo, _ = ppo_policy_error(ppo_policy_data(logit, other, action, adv, None), 0.2, 1.5, entropy_bonus=False)
        new, old = (x.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1) for x in (logit, other))
        assert ((new - old).exp() > 1.5).any()
        data = grpo_data(new.requires_grad_(), old, None, adv, None)
        losses = [
            grpo_error(data, beta=0, reduction='token', **options)[0]
            for options in (dict(surrogate_options=dict(dual_clip=1.5)), dict(delta=1.5), dict())
        ]
        assert losses[0].item() == pytest.approx(ppo.policy_loss.item(), abs=1e-12)
        assert losses[0].item() == pytest.approx(losses[1].item(), abs=1e-12) and losses[0] < losses[2]
        grads = [torch.autograd.grad(loss, new)[0] for loss in losses]
        assert torch.allclose(*grads[:2], atol=1e-12)

    def test_dual_clip_below_the_range(self):
        # r = 1.15 with c = 1.1: for A = -1 the objective is -1.1, for A = 1 it stays 1.15
        objective = clip_surrogate(
            torch.full((2, 1), 1.15), torch.tensor([[-1.], [1.]]), torch.zeros(2, 1), 0.8, 1.2, dual_clip=1.1
        )
        assert objective.flatten().tolist() == pytest.approx([-1.1, 1.15])


@pytest.mark.unittest
class TestCovariance:
    """Row 1 has A = 1, row 2 A = -1; mean log pi is -1. Covariances: 0.9, -0.1, -0.8 and -0.4, 0.6, -0.2."""
    new = torch.tensor([[-0.1, -1.1, -1.8], [-0.6, -1.6, -0.8]]).double()
    adv = torch.tensor([1., -1.]).double()

    def objective(self, name, weight=None, adv=None, **options):
        weight = torch.ones(2, 3) if weight is None else weight
        tensors = dict(logp_old=self.new - 0.1, weight=weight)
        given, _ = surrogate_arguments(SURROGATES[name])
        adv = (self.adv if adv is None else adv).unsqueeze(1)
        return SURROGATES[name](
            torch.full((2, 3), math.exp(0.1)).double(), adv, self.new, 0.8, 1.2, **{key: tensors[key]
                                                                                    for key in given}, **options
        )

    def test_kl_cov_takes_the_largest(self):
        plain = math.exp(0.1) * self.adv.unsqueeze(1).expand(2, 3)
        for share, chosen in ((0.0002, [(0, 0)]), (0.34, [(0, 0), (1, 1)]), (1., [(0, 0), (1, 1)])):
            expected = plain.clone()
            for place in chosen:
                expected[place] -= 0.5 * 0.1
            assert torch.allclose(self.objective('kl_cov', share=share, coefficient=0.5), expected)

    def test_kl_cov_leaves_equal_rewards_alone(self):
        assert not self.objective('kl_cov', adv=torch.zeros(2).double(), share=1.).any()

    def test_padding_has_no_covariance(self):
        weight = torch.tensor([[0., 1., 1.], [1., 1., 1.]])
        # the largest one does not count; without it the means are -0.2 and -1.18, so that (0, 1) has 1.2 * 0.08 > 0
        penalty = math.exp(0.1) * self.adv.unsqueeze(1) - self.objective('kl_cov', weight, share=1., coefficient=1.)
        assert penalty.flatten().tolist() == pytest.approx([0, 0.1, 0, 0, 0.1, 0], abs=1e-6)

    def test_clip_cov_drops_tokens_between_its_bounds(self):
        for low, high, dropped in ((0.5, 5., [(0, 0), (1, 1)]), (0.5, 0.8, [(1, 1)]), (0.95, 5., [])):
            found = self.objective('clip_cov', share=1., low=low, high=high)
            assert [tuple(place) for place in (found == 0).nonzero().tolist()] == dropped

    def test_clip_cov_draws_from_its_generator(self):

        def drawn(seed):
            generator = torch.Generator().manual_seed(seed)
            found = self.objective('clip_cov', low=0.5, generator=generator)
            place, = (found == 0).nonzero().tolist()
            return tuple(place)

        assert {drawn(seed) for seed in range(10)} == {(0, 0), (1, 1)}  # one of the two
        assert drawn(3) == drawn(3)

    def test_clipped_tokens_are_no_candidates(self):
        # r = e^0.1 is above 1.05, where A = 1 is clipped
        found = SURROGATES['clip_cov'](
            torch.full((2, 3), math.exp(0.1)).double(),
            self.adv.unsqueeze(1),
            self.new,
            0.8,
            1.05,
            weight=torch.ones(2, 3),
            share=1.,
            low=0.5
        )
        assert (found == 0).nonzero().tolist() == [[1, 1]]


@pytest.mark.unittest
@pytest.mark.parametrize('name', sorted(SURROGATES))
def test_fully_masked_row_is_zero_not_nan(name):
    torch.manual_seed(0)
    new, old = (-torch.rand(4, 5).double() * 2 for _ in range(2))
    adv, weight = torch.tensor([1., -2., 3., 0.5]).double(), torch.ones(4, 5)
    weight[1, 3:], weight[2] = 0, 0
    new.requires_grad_()

    def loss(rows):
        options = dict(low=0., generator=torch.Generator().manual_seed(0)) if name == 'clip_cov' else {}
        data = grpo_data(new[rows], old[rows], old[rows] - 0.1, adv[rows], weight[rows])
        return grpo_error(data, surrogate=name, surrogate_options=options)[0]

    whole, rest = loss([0, 1, 2, 3]), loss([0, 1, 3])
    assert whole.item() == pytest.approx(rest.item() * 3 / 4, abs=1e-12) and rest != 0
    grad, = torch.autograd.grad(whole, new)
    assert torch.equal(grad[2], torch.zeros(5).double()) and grad.isfinite().all()


@pytest.mark.unittest
class TestOptions:

    def test_of_a_users_function(self):

        def power(ratio, adv, logp_new, low, high, *, weight, logp_old, exponent=2.0):
            assert weight.shape == logp_old.shape == ratio.shape
            return ratio ** exponent * adv

        new, old = [[-1.]], [[-2.]]
        assert error(new, old, [1.], surrogate=power) == pytest.approx(-math.exp(2))
        found = error(new, old, [1.], surrogate=power, surrogate_options=dict(exponent=3))
        assert found == pytest.approx(-math.exp(3))

    @pytest.mark.parametrize(
        'surrogate, options, message', [
            ('dro', dict(bet=1.), r"surrogate_options = {'bet': 1.0}: 'bet' is not an option of 'dro'; its .* beta"),
            ('clip', dict(delta=2.), "'delta' is not an option of 'clip'; its options are dual_clip"),
            ('gpg', dict(beta=1.), "'beta' is not an option of 'gpg'; it has no options"),
            ('clip', dict(dual_clip=1.), r"surrogate_options\['dual_clip'\] = 1.0: .* above 1"),
            ('dppo_tv', dict(ratio_cap=0.5), r"surrogate_options\['ratio_cap'\] = 0.5: .* of at least 1"),
            ('dro', dict(beta=None), r"surrogate_options\['beta'\] = None"),
            ('dro', dict(beta=float('nan')), r"surrogate_options\['beta'\] = nan"),
            ('kl_cov', dict(share=0.), r"surrogate_options\['share'\] = 0.0: .* above 0"),
            ('kl_cov', dict(share=1.5), r"surrogate_options\['share'\] = 1.5: must be at most 1"),
            ('clip_cov', dict(low=5.), r"surrogate_options\['low'\] = 5.0: must be below 'high', 5.0"),
            ('clip_cov', dict(generator=3), r"surrogate_options\['generator'\] of int: must be a torch.Generator"),
            ('vespo', dict(k_neg=0), r"surrogate_options\['k_neg'\] = 0"),
            ('cpgd', dict(drift=True), r"surrogate_options\['drift'\] = True"),
        ]
    )
    def test_wrong_ones(self, surrogate, options, message):
        with pytest.raises(ValueError, match=message):
            error([[-1.]], [[-1.]], [1.], surrogate=surrogate, surrogate_options=options)

    @pytest.mark.parametrize('name', sorted(set(SURROGATES) - {'clip', 'cispo', 'sapo'}))
    def test_need_the_ratio_of_each_token(self, name):
        for surrogate in (name, SURROGATES[name]):
            with pytest.raises(ValueError, match="ratio = 'sequence': must be 'token' for surrogate"):
                error([[-1.]], [[-1.]], [1.], surrogate=surrogate, ratio='sequence')

    def test_every_surrogate_has_a_preset(self):
        assert {preset.surrogate for preset in LOSS_PRESETS.values()} == set(SURROGATES)
        assert {preset.adv_method for preset in LOSS_PRESETS.values()} <= set(ADVANTAGE_METHODS)

    def test_a_registered_surrogate_has_its_properties(self, monkeypatch):
        monkeypatch.setattr(registry, 'SURROGATES', dict(SURROGATES))

        @register_surrogate('power', token_ratio=True, of_batch=True, limits=dict(exponent=Limits(1, high=3)))
        def power(ratio, adv, logp_new, low, high, *, exponent=2.0):
            return ratio ** exponent * adv

        assert LossConfig(surrogate='power').objective is power and LossConfig(surrogate=power).traits.of_batch
        assert not surrogate_traits(lambda ratio, adv, logp_new, low, high: ratio * adv).of_batch
        for wrong, message in (
            (dict(ratio='sequence'), "ratio = 'sequence': must be 'token' for surrogate 'power'"),
            (dict(surrogate_options=dict(exponent=4)), r"surrogate_options\['exponent'\] = 4: must be at most 3"),
        ):
            with pytest.raises(ValueError, match=message):
                LossConfig(surrogate='power', **wrong)

    def test_sets_of_surrogates(self):
        names = [[name for name, f in SURROGATES.items() if f in group] for group in (BATCH_SURROGATES, ROW_SURROGATES)]
        assert names == [['clip_cov', 'kl_cov'], ['geo_mean']]
