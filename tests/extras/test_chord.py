"""CHORD: demonstrations with a schedule and weights of tokens (``policy.learn.demonstrations.schedule``)."""
import pytest
import torch

from ding_common import ConfigError
from ding_grpo.data.batch import Batch
from ding_grpo.extras.chord import share_of
from ding_grpo.rl_utils import supervised_data, supervised_error
from tests.extras.plain import refused
from tests.policies import ALONE, gradient, reward, sample_groups, token_policy, update
from tests.rl_utils.peers import assert_recorded, recorded, tensors

PEERS = recorded('relatives')


def harmonized(schedule, share=0.5, **learn):
    return token_policy(demonstrations=dict(share=share, schedule=schedule), **learn)


@pytest.mark.parametrize('case', PEERS['mu'], ids=range(len(PEERS['mu'])))
def test_the_schedule_is_that_of_ms_swift(case):
    options = [case[name] for name in ('warmup', 'decay', 'peak', 'valley')]
    assert [share_of(update, *options) for update in range(12)] == pytest.approx(case['values'], abs=1e-12)


@pytest.mark.parametrize('case', PEERS['chord'], ids=lambda case: f"phi-{case['phi']}")
def test_ms_swift(case):
    new, mask = tensors(PEERS, 'logp_new', 'mask')
    mu = share_of(case['update'], 4, 5, 0.9, 0.05)
    loss, _ = supervised_error(supervised_data(new.requires_grad_(), mask), 'token', phi=case['phi'])
    assert_recorded((1 - mu) * case['policy_loss'] + mu * loss, new, case, 'grad')


def test_phi_by_hand():
    logp = torch.tensor([[0.5, 0.1]]).double().log().requires_grad_()
    loss, info = supervised_error(supervised_data(logp, torch.ones(1, 2)), 'sum', phi=True)
    loss.backward()
    assert logp.grad.flatten().tolist() == pytest.approx([-0.25, -0.09])  # -p (1 - p), which has no gradient itself
    assert info.nll == pytest.approx(-(logp.sum() / 2).item())


def test_both_losses_share_a_step():
    """The gradient is (1 - mu) times that of the policy plus mu times that of the demonstrations."""
    found, constant = {}, dict(peak=0.3, valley=0.3)
    cases = dict(policy=dict(share=0., schedule={}), both=dict(schedule=constant), shown=dict(schedule={}, **ALONE))
    for name, options in cases.items():
        policy = harmonized(learning_rate=1e-9, grad_clip_value=1e9, **options)
        metrics = policy.updater.run(policy.learning.to_learn(Batch.of(sample_groups(policy, reward=reward))), 3)
        found[name] = gradient(policy), torch.tensor(metrics['total_loss']), metrics
    for part in (0, 1):
        assert torch.allclose(found['both'][part], 0.7 * found['policy'][part] + 0.3 * found['shown'][part], atol=1e-6)
    both, shown = found['both'][2], found['shown'][2]
    assert both['demonstration_share'] == 0.3 and 'demonstration_share' not in shown
    assert both['demonstration_nll'] == shown['demonstration_nll'] > 1


def test_the_schedule_counts_updates():
    policy = harmonized(dict(peak=0.8, valley=0.2, warmup=2, decay=2))
    shares = [update(policy, collect=number)['demonstration_share'] for number in range(5)]
    assert shares == pytest.approx([0., 0.4, 0.8, 0.5, 0.2])
    assert 'demonstration_share' in policy.learn_mode.monitor_vars()


DEMONSTRATIONS = 'only available with policy.learn.demonstrations'
REFUSED = {
    f'schedule.peak = 0.5: {DEMONSTRATIONS}': dict(schedule=dict(peak=0.5), share=0.),
    f'schedule.warmup = 5: {DEMONSTRATIONS}.schedule.peak': dict(schedule=dict(warmup=5)),
    'schedule.phi = True: only available with': dict(schedule=dict(phi=True)),
    'schedule.valley = 0.5: must be at most .*peak = 0.2': dict(schedule=dict(peak=0.2, valley=0.5)),
    'schedule.peak = 1.5': dict(schedule=dict(peak=1.5)),
    'schedule.peak = 0.5: needs a loss of the policy': dict(schedule=dict(peak=0.5), **ALONE),
}


@pytest.mark.parametrize('told', REFUSED)
def test_refused(told):
    with refused(told):
        harmonized(**REFUSED[told])


def test_the_weight_is_that_of_the_schedule():
    with pytest.raises(ConfigError, match='demonstrations.weight = 2.0: must be 1.0 with'):
        token_policy(demonstrations=dict(share=0.5, weight=2.0, schedule=dict(peak=0.5)))
