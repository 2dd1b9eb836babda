"""Shadow losses against runs with these losses in use, and against numbers worked out by hand."""
import re
from dataclasses import replace

import pytest
import torch

from ding_grpo.instruments.shadow import compare, shares
from ding_grpo.rl_utils import LOSS_PRESETS
from tests.cases import brief, long
from tests.policies import (
    CONTINUOUS, DISCRETE, PRESET, gradient, reward, sample_groups, sample_steps, step_policy, token_policy, update,
    weights
)


def shadow_of(metrics, name):
    start = f'shadow/{name}/'
    return {key[len(start):]: value for key, value in metrics.items() if key.startswith(start)}


def off_policy(policy):
    """Groups whose sampler had other log-probabilities, so that clipping matters."""
    data, generator = sample_groups(policy, [0, 1, 2], reward=reward), torch.Generator().manual_seed(3)
    for sample in data:
        sample['logp_old'] += 0.3 * torch.randn(sample['logp_old'].shape, generator=generator)
    return data


def gradients(**learn):
    """Metrics of an update, its gradient in the weights, and that in log-probabilities."""
    still = dict(PRESET, learning_rate=1e-12, grad_clip_value=1e9, batch_groups=3, entropy=dict(weight=0.0))
    policy, slopes = token_policy(collect=dict(groups=3), **dict(still, **learn)), []
    data, own = off_policy(policy), policy.actor.read

    def read(model, part, *args, **kwargs):
        found = own(model, part, *args, **kwargs)
        if found.logp.requires_grad:
            found.logp.register_hook(slopes.append)
        return found

    policy.actor.read = read
    metrics = policy.learn_mode.forward(data)
    return metrics, gradient(policy).double(), slopes[0].flatten().double()


class TestEqualsARunWithThatLoss:

    @pytest.mark.parametrize('loss', brief(LOSS_PRESETS, ('grpo', 'dapo', 'gspo', 'clip_cov', 'dro')))
    def test_loss_norm_and_cosine(self, loss):
        """In a run with grpo, the shadow of a loss is what a run with that loss measures of itself."""
        beside, first, first_slope = gradients(instruments=dict(shadow=[loss], shadow_every=1), kl=dict(beta=0.1))
        alone, second, second_slope = gradients(loss=loss, kl=dict(beta=0.1))
        found = shadow_of(beside, loss)
        cosine = torch.nn.functional.cosine_similarity
        assert found['loss'] == pytest.approx(alone['policy_loss'], rel=1e-5)
        assert found['norm'] == pytest.approx(second_slope.norm().item(), rel=1e-5)
        assert found['cosine'] == pytest.approx(cosine(first_slope, second_slope, 0).item(), abs=1e-6)
        assert found['weights_norm'] == pytest.approx(second.norm().item(), rel=1e-5)
        assert found['weights_cosine'] == pytest.approx(cosine(first, second, 0).item(), abs=1e-5)
        assert shadow_of(beside, 'in_use')['weights_norm'] == pytest.approx(first.norm().item(), rel=1e-5)

    def test_individual_choices_are_of_the_loss_in_use_alone(self):
        """Otherwise every preset would have the run's clipping range and advantages, and all would be alike."""
        plain = shadow_of(gradients(instruments=dict(shadow=['grpo', 'gspo']))[0], 'grpo')
        assert plain['cosine'] == pytest.approx(1, abs=1e-9)
        individual = dict(ratio='sequence', adv_method='rloo', clip=dict(ratio=3e-4))
        individual.update(surrogate_options=dict(dual_clip=2.0), instruments=dict(shadow=['grpo']))
        found = shadow_of(gradients(**individual)[0], 'grpo')
        assert found['norm'] == pytest.approx(plain['norm'], rel=1e-5) and found['cosine'] < 0.9

    @pytest.mark.parametrize('learn', [dict(entropy=dict(top_share=0.5)), dict(mask_truncated=True)])
    def test_learns_from_the_same_tokens(self, learn):
        metrics, *_ = gradients(instruments=dict(shadow=['grpo', 'dapo']), **learn)
        assert shadow_of(metrics, 'grpo')['cosine'] == pytest.approx(1, abs=1e-9)
        assert shadow_of(metrics, 'grpo')['norm'] == pytest.approx(shadow_of(metrics, 'in_use')['norm'])

    @pytest.mark.parametrize('wrong', [dict(clip_ratio=0.1), dict(reduction='token'), dict(adv_method='no_std')])
    def test_a_wrong_coefficient_is_seen(self, monkeypatch, wrong):
        """The mutations that this instrument exists for: a coefficient of the shadow differs from the loss in use."""
        monkeypatch.setitem(LOSS_PRESETS, 'cispo', replace(LOSS_PRESETS['grpo'], **wrong))
        assert shadow_of(gradients(instruments=dict(shadow=['cispo']))[0], 'cispo')['cosine'] < 0.9999


@pytest.mark.parametrize(
    'shadow, learn', [
        (['grpo', 'gspo', 'kl_cov'], dict(micro_batch_tokens=30, loss='clip_cov')),
        long('all', dict(advantage='gae', adv_method=None)),
    ]
)
def test_nothing_is_changed_bit_for_bit(shadow, learn):
    learn = dict(dict(learning_rate=1e-2, epoch_per_collect=2, batch_groups=1, kl=dict(beta=0.1)), **learn)
    policies = [token_policy(instruments=i, **learn) for i in ({}, dict(shadow=shadow, shadow_every=2))]
    metrics = [[update(policy) for _ in range(3)] for policy in policies]
    due = [['weights_norm' in shadow_of(m, 'in_use') for m in found] for found in metrics]
    assert due == [[False] * 3, [True, False, True]] and torch.equal(*map(weights, policies))
    without, beside = (
        [{k: v for k, v in m.items() if not re.search('/|second|memory', k)} for m in found] for found in metrics
    )  # yapf: disable
    assert without == beside


class TestWhichPresets:

    def test_all_of_a_language_model(self):
        metrics = update(token_policy(instruments=dict(shadow='all')))
        assert all({'loss', 'norm', 'cosine'} <= set(shadow_of(metrics, name)) for name in LOSS_PRESETS)

    @pytest.mark.parametrize(
        'model, learn, left_out',
        [
            (CONTINUOUS, {}, {'dr_grpo', 'dppo_tv', 'dppo_kl', 'flash_reinforce'}),
            # no ratio of a row, and no whole rows
            (
                DISCRETE, dict(batch_steps=4), {
                    'dr_grpo', 'dppo_tv', 'dppo_kl', 'gspo', 'gspo_token', 'luspo', 'gmpo', 'vespo', 'fipo', 'real',
                    'flash_reinforce'
                }
            ),
        ]
    )
    def test_the_others_are_left_out_with_a_reason(self, capsys, model, learn, left_out):
        policy = step_policy(model, learn=dict(learn), instruments=dict(shadow='all'))
        said = capsys.readouterr().out
        assert all(f"policy.instruments.shadow: without '{name}' (policy.learn." in said for name in left_out)
        metrics = policy.learn_mode.forward([sample_steps(policy, [3, 5], lambda row, step: float(row + step))])
        assert {name for name in LOSS_PRESETS if not shadow_of(metrics, name)} == left_out
        assert shadow_of(metrics, 'dapo')['norm'] > 0


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
