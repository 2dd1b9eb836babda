"""The bench finds unbiased gradients unbiased, biased ones biased, and planted sign errors."""
from dataclasses import replace
from functools import partial, wraps

import pytest
import torch

from ding_grpo.gradient_bench.batches import Batches
from ding_grpo.gradient_bench.estimate import Bench, estimate, estimates
from ding_grpo.gradient_bench.gradients import ADVANTAGES, MOST, advantages, loss_gradients
from ding_grpo.rl_utils import LOSS_PRESETS, REDUCTIONS, SURROGATES, grpo_data, grpo_error
from tests.gradient_bench.worlds import make

WITH_SURROGATE = {preset.surrogate: preset for preset in reversed(LOSS_PRESETS.values())}
WITH_REDUCTION = {preset.reduction: preset for preset in reversed(LOSS_PRESETS.values())}


def measure(loss, method, staleness=0., size=2, length=2, prompts=1, rewards=(0., 0.2, 1.), seed=0, change=None):
    """The estimate of one combination over all batches; ``change(adv, reward)`` gives other advantages (K, B, S)."""
    world, learner = make(3, length, prompts, seed, rewards)
    step = torch.randn(learner.shape, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.double)
    sampler = learner + staleness * step
    batches = Batches.all(world, sampler, size)
    adv = advantages(method, world, learner, sampler, batches.row)
    if change is not None:
        adv = change(adv, world.reward[batches.row].unsqueeze(-1) * world.weight[batches.row])
    config = LOSS_PRESETS[loss] if isinstance(loss, str) else loss
    found, = estimates(config, world, learner, sampler, batches, adv.unsqueeze(0), world.gradient(learner))
    return found


@pytest.mark.parametrize('texts, unbiased', [('whole', True), ('divided', False)])
def test_texts_of_a_completion(texts, unbiased):
    """Each text with the advantage of its completion adds up to the policy gradient; a share of it does not."""
    line, = Bench(['dr_grpo'], ['rloo'], [3], [0.], texts=texts).run(0)
    one, = Bench(['dr_grpo'], ['rloo'], [3], [0.]).run(0)
    assert (line['bias'] < 1e-10) == (line['scale'] == pytest.approx(one['scale'])) == unbiased
    assert unbiased or line['bias'] > 0.05


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
    def test_gradients(self, loss):
        """Against the gradient of the loss of one batch with respect to the logits."""
        world, learner = make(3, 3, 1)
        sampler = learner + 0.3 * torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.double)
        config = LOSS_PRESETS[loss]
        if loss == 'clip_cov':  # its random draw is that of all candidates
            config = replace(config, surrogate_options=dict(share=1.0, low=0.01))
        number = 30 if config.traits.of_batch else 5 * MOST  # more than a call gets
        row = Batches.sample(world, sampler, 4, number, torch.Generator().manual_seed(0)).row
        adv = torch.stack([advantages(name, world, learner, sampler, row) for name in ('rloo', 'grpo by step')])
        found = loss_gradients(config, world, learner, sampler, row, adv)
        for method, k in ((0, 3), (1, 8), (1, number - 1), (0, number - 1)):
            logits, rows = learner.clone().requires_grad_(), row[k]
            old = world.log_prob(sampler)[rows]
            data = grpo_data(
                world.log_prob(logits)[rows], old, None, adv[method, k], world.weight[rows], world.prompt[rows]
            )
            expected, = torch.autograd.grad(grpo_error(data, config, beta=0, max_length=3)[0], logits)
            assert torch.allclose(found[method, k], -expected.flatten(), atol=1e-12)


class TestBias:

    @pytest.mark.parametrize('prompts, size', [(1, 3), (2, 2)])
    @pytest.mark.parametrize(
        'loss, method', [
            *(('dr_grpo', m) for m in ('rloo', 'no_std', 'remax', 'rloo by step', 'no_std by step')),
            *(('luspo', m) for m in ('rloo', 'no_std')),
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


class TestPlantedSigns:

    @staticmethod
    def assert_reversed(right, wrong, method='rloo', change=None, **where):
        assert measure(right, method, **where).cosine > 0.5
        assert measure(wrong, method, change=change, **where).cosine < -0.5

    @pytest.mark.parametrize('name', SURROGATES)
    def test_in_a_surrogate(self, name):
        config, right = WITH_SURROGATE[name], SURROGATES[name]

        @wraps(right)
        def negated(*args, **kwargs):
            return -right(*args, **kwargs)

        self.assert_reversed(config, replace(config, surrogate=negated), staleness=0.1)

    @pytest.mark.parametrize(
        'loss, method', [*(('dr_grpo', m) for m in ADVANTAGES), *((r, 'rloo') for r in REDUCTIONS)]
    )
    def test_in_an_advantage(self, loss, method):
        """Of every method, and with every reduction."""
        loss = WITH_REDUCTION.get(loss, loss)
        self.assert_reversed(loss, loss, method, change=lambda adv, reward: -adv)

    @pytest.mark.parametrize('loss', ['bnpo', 'gspo', 'sapo'])
    def test_in_the_ratio(self, loss):
        """The importance ratio upside down."""
        config = LOSS_PRESETS[loss]
        surrogate = SURROGATES[config.surrogate]
        wrong = replace(config, surrogate=lambda ratio, *args: surrogate(1 / ratio, *args))
        self.assert_reversed(config, wrong)

    @pytest.mark.parametrize('method', ['no_std', 'opo', 'remax', 'rloo by step', 'optimal_token_baseline'])
    def test_in_a_baseline(self, method):
        """A baseline of the wrong sign need not add bias: it adds variance."""
        noise = partial(measure, 'dr_grpo', method, size=3, rewards=(1., 2.))
        plus = noise(change=lambda adv, reward: 2 * reward - adv)  # reward + baseline
        assert plus.noise > 1.2 * noise().noise
