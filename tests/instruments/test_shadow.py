"""Shadow losses against runs with these losses in use, and against numbers worked out by hand."""
import re
from dataclasses import replace

import pytest
import torch

from ding_common import ConfigError
from ding_grpo.instruments.shadow import compare, shares
from ding_grpo.rl_utils import LOSS_PRESETS
from tests.cases import long

from tests.policies import make_policy, sample_groups
from tests.learn.test_grpo import reward, vector
from tests.act.test_step_actor import CONTINUOUS, DISCRETE, make, sample_group

# As a preset alone defines the loss: nothing of the loss is set individually.
PLAIN = dict(clip_ratio=None, adv_method=None, entropy_weight=0.0)


def shadow_of(metrics, name):
    start = f'shadow/{name}/'
    return {key[len(start):]: value for key, value in metrics.items() if key.startswith(start)}


def off_policy(policy, data):
    """Groups whose sampler had other log-probabilities, so that clipping matters."""
    generator = torch.Generator().manual_seed(3)
    for sample in data:
        sample['logp_old'] += 0.3 * torch.randn(sample['logp_old'].shape, generator=generator)
    return data


def gradients(main, create, loss, **learn):
    """Metrics of an update with this loss, its gradient in the weights, and that in log-probabilities."""
    main.policy.learn.update(PLAIN, loss=loss, learning_rate=1e-12, grad_clip_value=1e9, **learn)
    policy = make_policy(main, create)
    data = off_policy(policy, sample_groups(policy, [0, 1, 2], reward=reward))
    slopes = []
    own = policy._learning.updater._actor.read

    def read(model, part, *args, **kwargs):
        found = own(model, part, *args, **kwargs)
        if found.logp.requires_grad:
            found.logp.register_hook(slopes.append)
        return found

    policy._learning.updater._actor.read = read
    metrics = policy.learn_mode.forward(data)
    return metrics, vector(p.grad for p in policy._model.parameters()).double(), slopes[0].flatten().double()


@pytest.fixture
def three_groups(think_answer):
    main, create = think_answer
    main.policy.learn.batch_size = main.policy.collect.n_sample = 3
    return main, create


@pytest.mark.unittest
class TestEqualsARunWithThatLoss:

    @pytest.mark.parametrize('loss', LOSS_PRESETS)
    def test_loss_norm_and_cosine(self, three_groups, loss):
        """In a run with grpo, the shadow of a loss is what a run with that loss measures of itself."""
        main, create = three_groups
        beside, first, first_slope = gradients(main, create, 'grpo', beta=0.1, shadow=[loss], shadow_every=1)
        alone, second, second_slope = gradients(main, create, loss, beta=0.1, shadow=[], shadow_every=0)
        found = shadow_of(beside, loss)
        cosine = torch.nn.functional.cosine_similarity
        assert found['loss'] == pytest.approx(alone['policy_loss'], rel=1e-5)
        assert found['norm'] == pytest.approx(second_slope.norm().item(), rel=1e-5)
        assert found['cosine'] == pytest.approx(cosine(first_slope, second_slope, 0).item(), abs=1e-6)
        assert found['weights_norm'] == pytest.approx(second.norm().item(), rel=1e-5)
        assert found['weights_cosine'] == pytest.approx(cosine(first, second, 0).item(), abs=1e-5)
        assert shadow_of(beside, 'in_use')['weights_norm'] == pytest.approx(first.norm().item(), rel=1e-5)

    def test_individual_choices_are_of_the_loss_in_use_alone(self, three_groups):
        """Otherwise every preset would have the run's clipping range and advantages, and all would be alike."""
        main, create = three_groups
        metrics, *_ = gradients(main, create, 'grpo', shadow=['grpo', 'gspo'])
        assert shadow_of(metrics, 'grpo')['cosine'] == pytest.approx(1, abs=1e-9)
        individual = dict(shadow=['grpo'], ratio='sequence', adv_method='rloo', surrogate_options=dict(dual_clip=2.0))
        main.policy.learn.update(clip_ratio=3e-4, learning_rate=1e-12, **individual)
        policy = make_policy(main, create)
        found = policy.learn_mode.forward(off_policy(policy, sample_groups(policy, [0, 1, 2], reward=reward)))
        assert shadow_of(found, 'grpo')['norm'] == pytest.approx(shadow_of(metrics, 'grpo')['norm'], rel=1e-5)
        assert shadow_of(found, 'grpo')['cosine'] < 0.9

    @pytest.mark.parametrize('learn', [dict(top_entropy=0.5), dict(mask_truncated=True), dict(drop_equal_groups=True)])
    def test_learns_from_the_same_tokens(self, three_groups, learn):
        main, create = three_groups
        metrics, *_ = gradients(main, create, 'grpo', shadow=['grpo', 'dapo'], **learn)
        assert shadow_of(metrics, 'grpo')['cosine'] == pytest.approx(1, abs=1e-9)
        assert shadow_of(metrics, 'grpo')['norm'] == pytest.approx(shadow_of(metrics, 'in_use')['norm'])


@pytest.mark.unittest
class TestNothingIsChanged:

    @pytest.mark.parametrize(
        'learn', [
            dict(),
            long(dict(loss='clip_cov', adv_method='no_std')),
            dict(micro_batch_tokens=30, loss='clip_cov'),
            dict(advantage='gae', adv_method=None),
        ]
    )
    def test_weights_bit_for_bit(self, think_answer, learn):
        main, create = think_answer
        main.policy.learn.update(learning_rate=1e-2, beta=0.1, epoch_per_collect=2, batch_size=1, **learn)
        weights, losses = [], []
        for shadow in ({}, dict(shadow='all', shadow_every=2)):
            main.policy.learn.update(shadow)
            policy = make_policy(main, create)
            found = [policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward)) for _ in range(3)]
            weights.append(vector(policy._model.parameters()))
            losses.append([{k: v for k, v in m.items() if not re.search('/|second|memory', k)} for m in found])
            due = ['weights_norm' in shadow_of(metrics, 'in_use') for metrics in found]
            assert due == [bool(shadow.get('shadow_every')), False, bool(shadow.get('shadow_every'))]
        assert torch.equal(*weights) and losses[0] == losses[1]

    def test_a_wrong_coefficient_is_seen(self, three_groups, monkeypatch):
        """The mutations that this instrument exists for: a coefficient of the shadow differs from the loss in use."""
        main, create = three_groups
        cosines = []
        preset = LOSS_PRESETS['grpo']
        for wrong in (dict(), dict(clip_ratio=0.1), dict(reduction='token'), dict(adv_method='no_std')):
            monkeypatch.setitem(LOSS_PRESETS, 'cispo', replace(preset, **wrong))
            metrics, *_ = gradients(main, create, 'grpo', shadow=['cispo'])
            cosines.append(shadow_of(metrics, 'cispo')['cosine'])
        assert cosines[0] == pytest.approx(1, abs=1e-9) and max(cosines[1:]) < 0.9999


@pytest.mark.unittest
class TestWhichPresets:

    def test_all_of_a_language_model(self, think_answer):
        main, create = think_answer
        main.policy.learn.shadow = 'all'
        policy = make_policy(main, create)
        metrics = policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward))
        assert list(policy.observers['shadow'].presets) == list(LOSS_PRESETS)
        assert all({'loss', 'norm', 'cosine'} <= set(shadow_of(metrics, name)) for name in LOSS_PRESETS)

    def test_the_others_are_left_out_with_a_reason(self, capsys):
        policy = make(CONTINUOUS, learn=dict(shadow='all'))
        left_out = set(LOSS_PRESETS) - set(policy.observers['shadow'].presets)
        assert left_out == {'dr_grpo', 'dppo_tv', 'dppo_kl'}
        said = capsys.readouterr().out
        assert all(f"policy.learn.shadow: without '{name}' (policy.learn." in said for name in left_out)
        metrics = policy.learn_mode.forward([sample_group(policy, [3, 5], lambda row, step: float(row + step))])
        assert shadow_of(metrics, 'dapo')['norm'] > 0

    def test_single_steps_have_no_ratio_of_a_row(self):
        policy = make(DISCRETE, learn=dict(shadow='all', batch_steps=4, batch_size=1))
        assert not {'gspo', 'luspo', 'gmpo', 'vespo'} & set(policy.observers['shadow'].presets)
        metrics = policy.learn_mode.forward([sample_group(policy, [3, 5], lambda row, step: float(row + step))])
        assert shadow_of(metrics, 'dapo')['norm'] > 0

    @pytest.mark.parametrize(
        'learn, message', [
            (dict(shadow=['dapo', 'dap']), "must be 'all' or a list of presets"),
            (dict(shadow='dapo'), "must be 'all' or a list of presets"),
            (dict(shadow_every=-1), 'policy.learn.shadow_every = -1'),
            (dict(shadow_every=5), 'policy.learn.shadow_every = 5: needs losses to compare'),
            (dict(shadow=['gmpo'], top_entropy=0.2), "this run cannot have 'gmpo'"),
        ]
    )
    def test_errors(self, think_answer, learn, message):
        main, create = think_answer
        main.policy.learn.update(learn)
        with pytest.raises(ConfigError, match=message.replace('(', r'\(')):
            make_policy(main, create)


@pytest.mark.unittest
class TestByHand:

    def test_norm_and_cosine(self):
        """(3, 4) and (4, 3), 0 and 2 (3, 4): 24 / 25; undefined; 1."""
        found = compare(torch.tensor([[[3., 4.]], [[4., 3.]], [[0., 0.]], [[6., 8.]]]))
        assert found['norm'].tolist() == pytest.approx([5, 5, 0, 10])
        assert found['cosine'].tolist() == pytest.approx([1, 0.96, float('nan'), 1], nan_ok=True)

    def test_shares(self):
        """Rows of 4, 2 and 1 steps; the second step of the first row is the environment's. Squares: 1, -, 4, 9; 16, 25;
        36. Thirds: of 3 steps one each; of two steps the first and the middle; a single one is the first. The median
        row has 2 steps."""
        weight = torch.tensor([[1., 0, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
        slope = torch.tensor([[1., 0, -2, 3], [4, -5, 0, 0], [6, 0, 0, 0]])
        sign = torch.tensor([[1.], [-1], [0]]).expand(3, 4)
        found = shares(slope.unsqueeze(0), sign.unsqueeze(0), weight)
        expected = dict(positive=14, negative=41, first=1 + 16 + 36, middle=4 + 25, last=9, long=14)
        assert {name: value.item() * 91 for name, value in found.items()} == pytest.approx(expected)
