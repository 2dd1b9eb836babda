"""Groups of another policy: ratios relative to the start of the update, importance weights, masked rows."""
import copy

import pytest
import torch

from ding_grpo.data.batch import Batch
from ding_grpo.rl_utils import divergent_rows, far_rows, sampler_correction
from tests.policies import Seen, learned, reward, sample_groups, token_policy


def policy_of(**learn):
    return token_policy(learning_rate=1e-2, **learn, entropy=dict(weight=0.0))


def stale_groups(policy):
    """Groups whose sampler was less likely to sample the first half of the tokens, and more likely the others."""
    data = sample_groups(policy, [0, 1, 2], reward=reward)
    for group in data:
        shift = torch.linspace(-1.5, 1.5, group['logp_old'].numel()).view_as(group['logp_old'])
        group['logp_old'] = group['logp_old'] + shift * group['weight']
        group['sampled_after'] = -1
    return data


class TestCorrection:

    @pytest.mark.parametrize(
        'level, band', [('token', {}), ('sequence', {}), ('token', dict(low=0.8, outside='mask'))], ids=str
    )
    def test_ratios_and_advantages(self, level, band):
        """The first step has ratios of 1, and each advantage its weight within the bounds."""
        policy = policy_of(batch_groups=3, off_policy=dict(correction=level, bound=1.5, **band))
        data = stale_groups(policy)
        batch = Batch.of(data)
        factor, cut = sampler_correction(policy.updater.read(batch), batch.logp_old, batch.weight, level, 1.5, **band)
        seen, metrics = Seen(policy), policy.learn_mode.forward(copy.deepcopy(data))
        assert 0.1 < cut < 0.9
        assert torch.equal(seen.learned[0].adv, learned(policy_of(), data).adv.unsqueeze(1) * factor)
        assert metrics['correction_cut'] == cut and metrics['ratio_max'] == pytest.approx(1, abs=1e-5)
        mean = (factor * batch.weight).sum() / batch.weight.sum()
        assert metrics['correction_mean'] == pytest.approx(mean.item(), abs=1e-6)
        assert metrics['kl_old'] == pytest.approx(0, abs=1e-8)

    @pytest.mark.parametrize('model', [dict(), dict(autocast='bfloat16')], ids=str)
    def test_later_steps_are_relative_to_the_start_of_the_update(self, model):
        policy = policy_of(
            policy=dict(model=model), batch_groups=1, epoch_per_collect=2, off_policy=dict(correction='token')
        )
        data, seen = stale_groups(policy), Seen(policy)
        first, groups = policy.updater.read(Batch.of(data)), Batch.of(data).group
        metrics = policy.learn_mode.forward(data)
        assert metrics['optimizer_steps'] == 6 == len(seen.steps) and metrics['ratio_max'] > 1.01
        for batch in seen.steps:
            used = policy.updater.logp_old(batch, torch.zeros_like(batch.weight))
            expected = first[torch.isin(groups, batch.group)][:, :used.shape[1]]
            assert torch.equal(used * batch.weight, expected * batch.weight)


@pytest.mark.parametrize(
    'options, rows', [
        (dict(row_mask=0.3, row_mask_type='k3'), lambda *given: (divergent_rows(*given, 0.3, 'k3'), True)),
        (dict(mask=0.5), lambda *given: (far_rows(*given, 0.5), False)),
    ],
    ids=['divergent', 'far']
)
def test_rows_are_masked(options, rows):
    """Divergent ones whatever their advantage, far ones where it is negative."""
    policy = policy_of(off_policy=options)
    data = stale_groups(policy)
    batch, plain = Batch.of(data), learned(policy_of(), data).adv
    found, all_signs = rows(policy.updater.read(batch), batch.logp_old, batch.weight)
    hidden = found & (all_signs | (plain < 0))
    seen, metrics = Seen(policy), policy.learn_mode.forward(data)
    assert (found & (plain > 0)).any() and (found & (plain < 0)).any() and (~found & (plain < 0)).any()
    assert torch.equal(seen.learned[0].adv, torch.where(hidden, 0, plain).unsqueeze(1).expand_as(batch.weight))
    share = batch.weight[hidden & (plain != 0)].sum() / batch.weight.sum()
    assert metrics['off_policy_masked'] == pytest.approx(share.item())
