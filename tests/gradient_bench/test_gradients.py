"""The bench finds unbiased gradients unbiased, biased ones biased, and planted sign errors."""
import functools
import inspect
import sys
import textwrap
from dataclasses import replace

import pytest
import torch

from ding_grpo.gradient_bench import gradients
from ding_grpo.gradient_bench.batches import Batches
from ding_grpo.gradient_bench.estimate import estimate
from ding_grpo.gradient_bench.gradients import ADVANTAGES, advantages, loss_gradients
from ding_grpo.rl_utils import (
    ADVANTAGE_METHODS, LOSS_PRESETS, REDUCTIONS, SURROGATES, TOKEN_ADVANTAGE_METHODS, advantage, grpo, grpo_data,
    grpo_error
)
from tests.gradient_bench.worlds import make

token_advantage = sys.modules['ding_grpo.rl_utils.token_advantage']  # the package has a function of this name


def measure(loss, method, staleness=0., size=2, length=2, prompts=1, rewards=(0., 0.2, 1.), seed=0):
    """The estimate of one combination over all batches."""
    world, learner = make(3, length, prompts, seed, rewards)
    change = torch.randn(learner.shape, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.double)
    sampler = learner + staleness * change
    batches = Batches.all(world, sampler, size)
    adv = advantages(method, world, learner, sampler, batches.row)
    gradient, = loss_gradients(LOSS_PRESETS[loss], world, learner, sampler, batches.row, adv.unsqueeze(0))
    return estimate(gradient, batches.probability, world.gradient(learner), True)


@pytest.mark.unittest
class TestTogether:
    """Many batches in one call give what each gives alone."""

    @pytest.mark.parametrize('method', ADVANTAGES)
    def test_advantages(self, method):
        world, learner = make(3, 3, 2)
        sampler = learner + 0.1
        row = Batches.sample(world, sampler, 3, 40, torch.Generator().manual_seed(0)).row
        alone = [advantages(method, world, learner, sampler, one) for one in row.split(1)]
        together = advantages(method, world, learner, sampler, row)
        assert together.shape == (40, 6, 3) and together.any()
        assert torch.allclose(together, torch.cat(alone), atol=1e-12)

    @pytest.mark.parametrize('loss', LOSS_PRESETS)
    def test_gradients(self, loss, monkeypatch):
        """Against the gradient of the loss of one batch with respect to the logits."""
        monkeypatch.setattr(gradients, 'MOST', 7)
        world, learner = make(3, 3, 1)
        sampler = learner + 0.3 * torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.double)
        row = Batches.sample(world, sampler, 4, 30, torch.Generator().manual_seed(0)).row
        adv = torch.stack([advantages(name, world, learner, sampler, row) for name in ('rloo', 'grpo by step')])
        config = LOSS_PRESETS[loss]
        if loss == 'clip_cov':  # its random draw is that of all candidates
            config = replace(config, surrogate_options=dict(share=1.0, low=0.01))
        found = loss_gradients(config, world, learner, sampler, row, adv)
        for method, number in ((0, 3), (1, 8), (1, 29), (0, 29)):
            logits, rows = learner.clone().requires_grad_(), row[number]
            old = world.log_prob(sampler)[rows]
            data = grpo_data(world.log_prob(logits)[rows], old, None, adv[method, number], world.weight[rows])
            expected, = torch.autograd.grad(grpo_error(data, config, beta=0, max_length=3)[0], logits)
            assert torch.allclose(found[method, number], -expected.flatten(), atol=1e-12)


@pytest.mark.unittest
class TestBias:

    @pytest.mark.parametrize('prompts, size', [(1, 2), (1, 3), (2, 2)])
    @pytest.mark.parametrize(
        'loss, method', [
            *(('luspo', method) for method in ('rloo', 'no_std', 'remax')),
            *(
                (loss, method) for loss in ('dr_grpo', 'dppo_tv', 'dppo_kl')
                for method in ('rloo', 'no_std', 'remax', 'rloo by step', 'no_std by step')
            ),
        ]
    )
    def test_none_on_policy(self, loss, method, prompts, size):
        """'constant' divides by the maximum length, 2. The mean of no_std includes the row itself: (G - 1) / G."""
        found = measure(loss, method, size=size, prompts=prompts)
        factor = (size - 1) / size if method.startswith('no_std') else 1
        assert found.scale == pytest.approx(factor / (1 if loss == 'luspo' else 2), abs=1e-10)
        assert found.bias < 1e-10 and found.cosine == pytest.approx(1, abs=1e-12) and found.noise > 0.5

    @pytest.mark.parametrize(
        'loss, method, least', [
            ('luspo', 'rloo by step', 0.01),
            ('grpo', 'rloo', 0.05),
            ('bnpo', 'rloo', 0.02),
            ('dr_grpo', 'grpo', 0.02),
            ('dr_grpo', 'pass_k', 0.1),
            ('dr_grpo', 'max_rl', 0.05),
            ('dr_grpo', 'opo', 0.01),
            ('dr_grpo', 'reinforce_plus_plus', 0.02),
            ('dr_grpo', 'optimal_token_baseline', 0.01),
        ]
    )
    def test_of_known_kinds(self, loss, method, least):
        found = measure(loss, method)
        assert found.bias > least and found.cosine > 0.5

    def test_division_by_the_deviation_with_two_rewards(self):
        """With rewards 0 and 1 it keeps the direction for one prompt. Several prompts get different weights, but not
        in groups of at most 3, where the deviation is either 0 or always the same."""
        two = dict(rewards=(0., 1.), prompts=2, length=1)
        assert measure('dr_grpo', 'grpo', rewards=(0., 1.), size=4).bias < 1e-10
        assert measure('dr_grpo', 'grpo', size=3, **two).bias < 1e-10
        assert measure('dr_grpo', 'grpo', size=4, **two).bias > 0.01
        assert measure('dr_grpo', 'no_std', size=4, **two).bias < 1e-10

    def test_length_normalisation_is_the_gradient_of_another_objective(self):
        """E[(R - m) / length] with m = J held constant."""
        world, learner = make(3, 3, 1)
        batches = Batches.all(world, learner, 3)
        adv = advantages('rloo', world, learner, learner, batches.row).unsqueeze(0)
        gradient, = loss_gradients(LOSS_PRESETS['grpo'], world, learner, learner, batches.row, adv)
        centred = world.reward - world.expected_reward(learner)
        other = world._replace(reward=centred / world.weight.sum(1)).gradient(learner)
        assert torch.allclose(batches.probability @ gradient, other, atol=1e-12)

    def test_staleness_adds_bias(self):
        found = [measure('dr_grpo', 'rloo', staleness).bias for staleness in (0, 0.02, 0.5)]
        assert found[0] < 1e-10 < 1e-4 < found[1] < found[2]

    def test_estimate_by_hand(self):
        """g is (2, 0), (0, 2) or (0, 0); E g = (1, 1/2), h = (1, 0), variance 1/2 |(1, -1/2)|^2 + 1/4 |(1, -3/2)|^2 +
        1/4 |(1, 1/2)|^2 = 0.625 + 0.8125 + 0.3125."""
        gradient = torch.tensor([[2., 0.], [0., 2.], [0., 0.]], dtype=torch.double)
        p = torch.tensor([0.5, 0.25, 0.25], dtype=torch.double)
        found = estimate(gradient, p, torch.tensor([1., 0.], dtype=torch.double), False)
        size = 1.25 ** 0.5
        assert found.scale == pytest.approx(1) and found.cosine == pytest.approx(1 / size)
        assert found.bias == pytest.approx(0.5 / size) and found.batch_cosine == pytest.approx(0.5)
        assert found.noise == pytest.approx(1.75 ** 0.5 / size)
        assert found.standard_error == pytest.approx(found.noise / 3 ** 0.5)


def wrong(function):
    """The function with the opposite sign."""
    return functools.wraps(function)(lambda *args, **kwargs: -function(*args, **kwargs))


def with_text(function, old, new):
    """The function with a part of its source replaced."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f'{function.__name__}: {old!r} occurs {source.count(old)} times'
    namespace = dict(vars(inspect.getmodule(function)))
    exec(source.replace(old, new), namespace)
    return namespace[function.__name__]


def plant_in_surrogate(monkeypatch, name, old, new):
    """Replace a part of a surrogate, which then registers itself; the original returns after the test."""
    monkeypatch.setitem(SURROGATES, name, SURROGATES[name])
    with_text(SURROGATES[name], old, new)


@pytest.mark.unittest
class TestPlantedSigns:

    @staticmethod
    def of_surrogate(name):
        return next(loss for loss, preset in LOSS_PRESETS.items() if preset.surrogate == name)

    @pytest.mark.parametrize('staleness', [0., 0.1])
    @pytest.mark.parametrize('name', SURROGATES)
    def test_in_a_surrogate(self, name, staleness, monkeypatch):
        loss = self.of_surrogate(name)
        assert measure(loss, 'rloo', staleness).cosine > 0.5
        monkeypatch.setitem(SURROGATES, name, wrong(SURROGATES[name]))
        assert measure(loss, 'rloo', staleness).cosine < -0.5

    @pytest.mark.parametrize('method', ADVANTAGES)
    def test_in_an_advantage(self, method, monkeypatch):
        assert measure('dr_grpo', method).cosine > 0.5
        if method in ADVANTAGE_METHODS:
            monkeypatch.setitem(advantage._METHODS, method, wrong(advantage._METHODS[method]))
        elif method in TOKEN_ADVANTAGE_METHODS:
            monkeypatch.setattr(gradients, 'token_advantage', wrong(token_advantage.token_advantage))
        else:
            monkeypatch.setattr(advantage, 'group_advantage', wrong(advantage.group_advantage))
        assert measure('dr_grpo', method).cosine < -0.5

    @pytest.mark.parametrize('reduction', REDUCTIONS)
    def test_in_a_reduction(self, reduction, monkeypatch):
        loss = next(name for name, preset in LOSS_PRESETS.items() if preset.reduction == reduction)
        assert measure(loss, 'rloo').cosine > 0.5
        right = grpo.reduce_loss
        monkeypatch.setattr(
            grpo, 'reduce_loss', lambda x, weight, name, *args: right(x, weight, name, *args) *
            (-1 if name == reduction else 1)
        )
        assert measure(loss, 'rloo').cosine < -0.5

    @pytest.mark.parametrize('method', ['grpo', 'no_std', 'rloo', 'batch', 'opo', 'gpg', 'max_rl', 'rloo by step'])
    def test_in_a_baseline(self, method, monkeypatch):
        """A baseline of the wrong sign need not add bias: it adds variance."""
        before = measure('dr_grpo', method, size=3).noise
        plus = with_text(advantage._Groups.centred, 'self.reward - baseline', 'self.reward + baseline')
        monkeypatch.setattr(advantage._Groups, 'centred', plus)
        if method == 'no_std':
            monkeypatch.setitem(advantage._METHODS, method, plus)
        assert measure('dr_grpo', method, size=3).noise > 1.2 * before

    @pytest.mark.parametrize(
        'method, function, old, new', [
            ('remax', token_advantage.token_advantage, 'values - baseline', 'values + baseline'),
            (
                'optimal_token_baseline', token_advantage._over_optimal_baseline, 'values - baseline',
                'values + baseline'
            ),
            ('reinforce_plus_plus', advantage.whiten, '(x - mean) * (variance', '(x + mean) * (variance'),
        ]
    )
    def test_in_a_baseline_of_tokens(self, method, function, old, new, monkeypatch):
        before = measure('dr_grpo', method, rewards=(1., 2.)).noise
        plus = with_text(function, old, new)
        monkeypatch.setattr(token_advantage, function.__name__, plus)
        monkeypatch.setattr(gradients, 'token_advantage', token_advantage.token_advantage)
        assert measure('dr_grpo', method, rewards=(1., 2.)).noise > 2 * before

    @pytest.mark.parametrize(
        'name, old, new', [
            ('clip', 'torch.min(', 'torch.max('),
            ('sapo', 'ratio - 1', '1 - ratio'),
            ('dppo_tv', 'adv > 0', 'adv < 0'),
            ('dppo_kl', 'torch.where(adv > 0, new > old, new < old)', 'torch.where(adv < 0, new > old, new < old)'),
            ('dppo_kl', 'divergence <=', 'divergence >='),
            ('geo_mean', 'logp_new - logp_old', 'logp_old - logp_new'),
            ('geo_mean', 'adv > 0', 'adv < 0'),
            ('dro', 'logp_new - beta', 'logp_new + beta'),
            ('kl_cov', 'ratio * adv - coefficient', 'ratio * adv + coefficient'),
            ('vespo', 'slope * log_w.exp()', '-slope * log_w.exp()'),
            ('vespo', 'logp_new - logp_old', 'logp_old - logp_new'),
            ('cpgd', 'adv > 0', 'adv < 0'),
        ]
    )
    def test_inside_a_surrogate(self, name, old, new, monkeypatch):
        """The numbers change. They need not get worse: see docs/results/gradients.md, "Sign errors"."""
        loss = self.of_surrogate(name)
        where = dict(staleness=1., length=2 if name == 'kl_cov' else 3)
        before = measure(loss, 'rloo', **where)
        plant_in_surrogate(monkeypatch, name, old, new)
        after = measure(loss, 'rloo', **where)
        assert max(abs(getattr(after, key) / getattr(before, key) - 1) for key in ('scale', 'cosine', 'noise')) > 0.1

    def test_reversed_clipping_in_eight_worlds(self, monkeypatch):
        """The number in docs/results/gradients.md."""
        where = [dict(staleness=0.5, length=3, seed=seed) for seed in range(8)]
        before = [measure('dr_grpo', 'rloo', **w).bias for w in where]
        plant_in_surrogate(monkeypatch, 'clip', 'torch.min(', 'torch.max(')
        assert sum(measure('dr_grpo', 'rloo', **w).bias < b for w, b in zip(where, before)) == 6

    @pytest.mark.parametrize('loss', ['bnpo', 'gspo', 'sapo'])
    def test_in_the_ratio(self, loss, monkeypatch):
        """The importance ratio upside down."""
        assert measure(loss, 'rloo').cosine > 0.5
        text = 'log_ratio = logp_new - logp_old', 'log_ratio = logp_old - logp_new'
        monkeypatch.setattr(grpo, '_ratio_and_kl', with_text(grpo._ratio_and_kl, *text))
        assert measure(loss, 'rloo').cosine < -0.5
