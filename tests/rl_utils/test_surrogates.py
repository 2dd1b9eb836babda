"""The surrogates of papers against verl and TRL, and their options."""
import math

import pytest
import torch

from ding_grpo.rl_utils import (
    SURROGATES, Limits, LossConfig, grpo_data, grpo_error, ppo_policy_data, ppo_policy_error, register_surrogate,
    surrogate_traits
)
from tests.rl_utils.peers import assert_recorded, double, recorded, tensors

VERL = recorded('verl_policy_losses')
TRL = recorded('trl_vespo')['cases']
REDUCTIONS = {'token-mean': 'token', 'seq-mean-token-mean': 'sequence', 'seq-mean-token-sum': 'sum'}
OPTIONS = dict(
    dro_beta='beta',
    kl_cov_ratio='share',
    ppo_kl_coef='coefficient',
    clip_cov_ratio='share',
    clip_cov_lb='low',
    clip_cov_ub='high',
    clip_ratio_c='ratio_cap',
)


def error(new, old, adv, weight=None, **options):
    data = grpo_data(double(new), double(old), None, double(adv), weight)
    return grpo_error(data, beta=0, **options)[0].item()


@pytest.mark.usefixtures('on_device')
class TestAgainstPeers:

    @pytest.mark.parametrize('case', VERL['losses'], ids=lambda case: f"{case['name']}-{case['aggregation']}")
    def test_verl(self, case):
        new, old, adv, weight = tensors(VERL, 'logp_new', 'logp_old', 'adv', 'mask')
        given = case['options']
        options = {**given.get('policy_loss', {}), **{k: v for k, v in given.items() if k in OPTIONS}}
        loss, _ = grpo_error(
            grpo_data(new.requires_grad_(), old, None, adv, weight),
            beta=0,
            clip_ratio=given.get('clip_ratio_low', 0.2),
            clip_ratio_high=given.get('clip_ratio_high'),
            surrogate=case['name'],
            surrogate_options={OPTIONS[key]: value
                               for key, value in options.items() if value is not None},
            reduction=REDUCTIONS[case['aggregation']]
        )
        assert_recorded(loss, new, case, 'grad')

    @pytest.mark.parametrize('case', TRL, ids=range(len(TRL)))
    def test_vespo_is_trls(self, case):
        new, *others = tensors(case, 'logp_new', 'logp_old', 'logp_ref', 'adv', 'mask')
        options = dict(surrogate='vespo', surrogate_options=case['options'], reduction='token')
        loss, _ = grpo_error(grpo_data(new.requires_grad_(), *others), beta=case['beta'], **options)
        assert_recorded(loss, new, case, 'grad_logp_new')


class TestByHand:

    @pytest.mark.parametrize('name, inside, outside', [('dppo_tv', 0.11, 0.09), ('dppo_kl', 0.0205, 0.0203)])
    def test_dppo_has_a_range_on_each_side(self, name, inside, outside):
        # probabilities 0.5 -> 0.6 and 0.5 -> 0.4: moved by 0.1, KL 0.5 log(0.5 / 0.6) + 0.5 log(0.5 / 0.4) = 0.020411
        new, old = [[math.log(0.6)], [math.log(0.4)]], [[math.log(0.5)]] * 2
        rises, falls = 1.2 * math.log(0.6), -2 * 0.8 * math.log(0.4)
        both = rises + falls
        for low, high, expected in ((outside, inside, rises), (inside, outside, falls), (inside, inside, both)):
            options = dict(surrogate=name, clip_ratio=low, clip_ratio_high=high)
            assert error(new, old, [1., -2.], **options) == pytest.approx(-expected / 2)
            # in the direction against A nothing has moved too far
            assert error(new, old, [-1., 2.], **options) == pytest.approx(both / 2)
        capped = error(new[:1], old[:1], [1.], surrogate=name, clip_ratio=1., surrogate_options=dict(ratio_cap=1.1))
        assert capped == pytest.approx(-1.1 * math.log(0.6))
        assert error([[0.]], [[0.]], [1.], surrogate=name) == 0  # a probability of 1: no other token

    @pytest.mark.parametrize('reduction', ['sequence', 'token', 'sum', 'constant'])
    def test_geo_mean_is_a_mean_over_rows_whatever_the_reduction(self, reduction):
        # row 1: log r = 0.3, -0.9; A = 1 bounds by 0.2: exp((0.2 - 0.9) / 2). Row 2: log r = -0.3, A = -2 by -0.2.
        new, old, weight = [[0.3, -0.9], [-0.3, 7.]], [[0., 0.], [0., 0.]], torch.tensor([[1., 1.], [1., 0.]])
        options = dict(clip_ratio=0.2, reduction=reduction, max_length=9)
        found = error(new, old, [1., -2.], weight, surrogate='geo_mean', **options)
        assert found == pytest.approx((-math.exp(-0.35) + 2 * math.exp(-0.2)) / 2)

    def test_cpgd(self):
        # a clipping range of 0.2 bounds log pi by log pi_old + log 1.2 for A > 0 and log 0.8 for A < 0
        old, new, adv = [[-1.]] * 4, [[-0.5], [-1.5], [-0.5], [-1.5]], [2., 2., -2., -2.]
        objectives = [2 * (-1 + math.log(1.2)), 2 * -1.5, -2 * -0.5, -2 * (-1 + math.log(0.8))]
        assert error(new, old, adv, surrogate='cpgd') == pytest.approx(-sum(objectives) / 4)
        # r - 1 - log r = e^0.5 - 1.5 and e^-0.5 - 0.5
        drift = 0.1 * (math.exp(0.5) - 1.5 + math.exp(-0.5) - 0.5) / 2
        found = error(new, old, adv, surrogate='cpgd', surrogate_options=dict(drift=0.1))
        assert found == pytest.approx(-sum(objectives) / 4 + drift)
        # the gradient is zero outside the range in the direction of the advantage
        leaf = double(new).requires_grad_()
        grpo_error(grpo_data(leaf, double(old), None, double(adv), None), beta=0, surrogate='cpgd')[0].backward()
        assert leaf.grad.flatten().tolist() == [0, -0.5, 0.5, 0]

    def test_dual_clip_is_that_of_ppo_and_equals_delta(self):
        torch.manual_seed(0)
        logit, other = (torch.randn(6, 4, 3).double() * 2 for _ in range(2))
        action, adv = torch.randint(0, 3, (6, 4)), torch.randn(6, 4).double()
        ppo, _ = ppo_policy_error(ppo_policy_data(logit, other, action, adv, None), 0.2, 1.5, entropy_bonus=False)
        new, old = (x.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1) for x in (logit, other))
        assert ((new - old).exp() > 1.5).any()
        data = grpo_data(new.requires_grad_(), old, None, adv, None)
        dual, delta, plain = (
            grpo_error(data, beta=0, reduction='token', **options)[0]
            for options in (dict(surrogate_options=dict(dual_clip=1.5)), dict(delta=1.5), dict())
        )
        assert dual.item() == pytest.approx(ppo.policy_loss.item(), abs=1e-12)
        assert dual.item() == pytest.approx(delta.item(), abs=1e-12) and dual < plain
        assert torch.allclose(*(torch.autograd.grad(loss, new)[0] for loss in (dual, delta)), atol=1e-12)


class TestCovariance:
    """Row 1 has A = 1, row 2 A = -1; mean log pi is -1. Covariances: 0.9, -0.1, -0.8 and -0.4, 0.6, -0.2."""
    new = double([[-0.1, -1.1, -1.8], [-0.6, -1.6, -0.8]])
    adv = double([[1.], [-1.]])
    plain = math.exp(0.1) * adv.expand(2, 3)

    def objective(self, name, weight=torch.ones(2, 3), adv=adv, ratio_high=1.2, **options):
        if name == 'kl_cov':
            options['logp_old'] = self.new - 0.1
        ratio = torch.full((2, 3), math.exp(0.1)).double()
        return SURROGATES[name](ratio, adv, self.new, 0.8, ratio_high, weight=weight, **options)

    @pytest.mark.parametrize('share, chosen', [(0.0002, [(0, 0)]), (1., [(0, 0), (1, 1)])])
    def test_kl_cov_takes_the_largest(self, share, chosen):
        expected = self.plain.clone()
        for place in chosen:
            expected[place] -= 0.5 * 0.1
        assert torch.allclose(self.objective('kl_cov', share=share, coefficient=0.5), expected)

    def test_kl_cov_leaves_equal_rewards_alone(self):
        assert not self.objective('kl_cov', adv=torch.zeros(2, 1).double(), share=1.).any()

    def test_padding_has_no_covariance(self):
        weight = torch.tensor([[0., 1., 1.], [1., 1., 1.]])
        # the largest one does not count; without it the means are -0.2 and -1.18, so that (0, 1) has 1.2 * 0.08 > 0
        penalty = self.plain - self.objective('kl_cov', weight, share=1., coefficient=1.)
        assert penalty.flatten().tolist() == pytest.approx([0, 0.1, 0, 0, 0.1, 0], abs=1e-6)

    @pytest.mark.parametrize(
        'options, dropped',
        [
            (dict(low=0.5), [[0, 0], [1, 1]]),
            (dict(low=0.5, high=0.8), [[1, 1]]),
            (dict(low=0.5, ratio_high=1.05), [[1, 1]]),  # where A = 1, r = e^0.1 is clipped: no candidate
        ]
    )
    def test_clip_cov_drops_tokens_between_its_bounds(self, options, dropped):
        assert (self.objective('clip_cov', share=1., **options) == 0).nonzero().tolist() == dropped

    def test_clip_cov_draws_from_its_generator(self):

        def drawn(seed):
            found = self.objective('clip_cov', low=0.5, generator=torch.Generator().manual_seed(seed))
            place, = (found == 0).nonzero().tolist()
            return tuple(place)

        assert {drawn(seed) for seed in range(10)} == {(0, 0), (1, 1)}  # one of the two
        assert drawn(3) == drawn(3)


def test_a_surrogate_of_a_user_has_the_properties_that_it_registers(monkeypatch):
    monkeypatch.setitem(SURROGATES, 'power', None)  # and none after this test

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
