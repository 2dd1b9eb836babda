"""Groups of another policy: ratios relative to the start of the update, importance weights, masked rows."""
import copy

import pytest
import torch

from ding_common import ConfigError
from ding_grpo.data.batch import Batch
from ding_grpo.rl_utils import far_rows, sampler_correction

from tests.policies import sample_groups
from tests.learn.test_adaptive import policy_of
from tests.learn.test_grpo import reward
from tests.learn.test_token_advantages import learned_advantages


def stale_groups(policy):
    """Groups whose sampler was less likely to sample the first half of the tokens, and more likely the others."""
    data = sample_groups(policy, [0, 1, 2], reward=reward)
    for group in data:
        shift = torch.linspace(-1.5, 1.5, group['logp_old'].numel()).view_as(group['logp_old'])
        group['logp_old'] = group['logp_old'] + shift * group['weight']
        group['sampled_after'] = -1
    return data


@pytest.mark.unittest
class TestCorrection:

    @pytest.mark.parametrize('level', ['token', 'sequence'])
    def test_ratios_and_advantages(self, think_answer, level):
        """The first step has ratios of 1, and each advantage its truncated weight."""
        learn = dict(sampler_correction=level, sampler_correction_bound=1.5)
        policy = policy_of(think_answer, **learn, batch_size=3)
        data = stale_groups(policy)
        off = dict(sampler_correction=None, sampler_correction_bound=2.0)
        plain, _ = learned_advantages(policy_of(think_answer, **off), copy.deepcopy(data))
        batch = Batch.of(data)
        logp = policy._learning.updater.read(batch)
        factor, cut = sampler_correction(logp, batch.logp_old, batch.weight, level, 1.5)
        assert 0.1 < cut < 0.9
        run, seen = policy._learning.updater.run, []
        policy._learning.updater.run = lambda batch, update: seen.append(batch) or run(batch, update)
        metrics = policy.learn_mode.forward(data)
        assert torch.equal(seen[0].adv, plain.unsqueeze(1) * factor)
        assert metrics['correction_cut'] == cut and metrics['ratio_max'] == pytest.approx(1, abs=1e-5)
        mean = (factor * batch.weight).sum() / batch.weight.sum()
        assert metrics['correction_mean'] == pytest.approx(mean.item(), abs=1e-6)
        assert metrics['kl_old'] == pytest.approx(0, abs=1e-8)

    @pytest.mark.parametrize('model', [dict(), dict(autocast='bfloat16')], ids=str)
    def test_later_steps_are_relative_to_the_start_of_the_update(self, think_answer, model):
        main, _ = think_answer
        main.policy.model.update(model)
        policy = policy_of(think_answer, sampler_correction='token', batch_size=1, epoch_per_collect=2)
        data = stale_groups(policy)
        first = policy._learning.updater.read(Batch.of(data))
        used, find = [], policy._learning.updater.logp_old
        policy._learning.updater.logp_old = lambda batch, new: used.append((batch, find(batch, new))) or used[-1][1]
        metrics = policy.learn_mode.forward(data)
        groups = Batch.of(data).group
        assert metrics['optimizer_steps'] == 6 and metrics['ratio_max'] > 1.01
        for batch, logp in used:
            expected = first[torch.isin(groups, batch.group)][:, :logp.shape[1]]
            assert torch.equal(logp * batch.weight, expected * batch.weight)

    def test_on_policy_it_changes_nothing_but_rounding(self, think_answer):
        found = []
        for level in (None, 'token', 'sequence'):
            policy = policy_of(think_answer, sampler_correction=level, batch_size=2)
            metrics = policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward))
            found.append((metrics['grad_norm'], metrics['policy_loss']))
            assert metrics.get('correction_cut', 0.) == 0 and metrics.get('correction_mean', 1.) == pytest.approx(1)
        assert found[1] == pytest.approx(found[0], abs=1e-5) and found[2] == pytest.approx(found[0], abs=1e-5)


@pytest.mark.unittest
class TestMask:

    def test_negative_advantages_of_far_rows(self, think_answer):
        policy = policy_of(think_answer, off_policy_mask=0.5)
        data = stale_groups(policy)
        batch = Batch.of(data)
        plain, _ = learned_advantages(policy_of(think_answer, off_policy_mask=None), copy.deepcopy(data))
        far = far_rows(policy._learning.updater.read(batch), batch.logp_old, batch.weight, 0.5)
        run, seen = policy._learning.updater.run, []
        policy._learning.updater.run = lambda batch, update: seen.append(batch) or run(batch, update)
        metrics = policy.learn_mode.forward(data)
        hidden = far & (plain < 0)
        assert hidden.any() and (far & (plain > 0)).any() and (~far & (plain < 0)).any()
        assert torch.equal(seen[0].adv, torch.where(hidden, 0, plain).unsqueeze(1).expand_as(batch.weight))
        share = batch.weight[hidden].sum() / batch.weight.sum()
        assert metrics['off_policy_masked'] == pytest.approx(share.item())


@pytest.mark.unittest
@pytest.mark.parametrize(
    'learn, message', [
        (dict(sampler_correction='row'), r"sampler_correction = 'row': must be one of 'token', 'sequence', or None"),
        (dict(sampler_correction='token', sampler_correction_bound=0.9), 'sampler_correction_bound = 0.9: must be'),
        (dict(sampler_correction_bound=3.0), 'sampler_correction_bound = 3.0: only available with'),
        (dict(off_policy_mask=0.0), 'off_policy_mask = 0.0: must be'),
        (dict(sampler_correction='token', loss='dro', clip_ratio=None, adv_method=None), "with surrogate 'dro'"),
        (dict(off_policy_mask=0.1, loss='gmpo', clip_ratio=None, adv_method=None), "with surrogate 'geo_mean'"),
    ]
)
def test_refused(think_answer, learn, message):
    with pytest.raises(ConfigError, match=message):
        policy_of(think_answer, **learn)
