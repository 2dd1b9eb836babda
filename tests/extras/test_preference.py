"""``policy.learn.preference``: DPO of the best row of each group, beside the policy's loss or alone."""
from types import SimpleNamespace

import pytest
from torch.nn.functional import logsigmoid

from ding_common import ConfigError
from ding_grpo.data.batch import Batch
from ding_grpo.extras.preference import PreferenceLoss
from tests.extras.plain import assert_step, plain_log_probs, refused
from tests.policies import ALONE, change, reward, sample_groups, same_reward, token_policy, update
from tests.processes import one_of


def preferring(policy={}, weight=1., beta=0.5, reference='sampler', **learn):
    return token_policy(policy, preference=dict(weight=weight, beta=beta, reference=reference), **learn)


def of_rows(model, batch):
    """Log-probability (B, ) of each row by ``transformers``."""
    return (plain_log_probs(model, batch) * batch.weight).sum(1)


@pytest.mark.parametrize('reference', ['sampler', 'start'])
def test_the_gradient_is_that_of_dpo_under_transformers(reference):
    kl = dict(kl=dict(beta=1e-9)) if reference == 'start' else dict(kl=dict(beta=0.))
    policy = preferring(reference=reference, learning_rate=1e-9, weight=2., **ALONE, **kl)
    if reference == 'start':
        change(policy.reference, 0.9)
    batch = Batch.of(sample_groups(policy, reward=lambda group, row: float((3 * row + group) % 4)))
    own = of_rows(policy.model, batch)
    ref = own.detach() if reference == 'sampler' else of_rows(policy.reference, batch).detach()
    gap, returns = own - ref, batch.reward.sum(1)
    expected = 0.
    for group in (0, 1):
        rows = (batch.group == group).nonzero().squeeze(1)
        best, worst = rows[returns[rows].argmax()], rows[returns[rows].argmin()]
        expected = expected - logsigmoid(0.5 * (gap[best] - gap[worst])) / 2
    metrics = assert_step(policy, policy.learning.to_learn(batch), 2 * expected)
    assert metrics['preference_loss'] == pytest.approx(expected.item(), abs=1e-5) and metrics['preference_pairs'] == 1
    assert metrics['total_loss'] == pytest.approx(2 * expected.item(), abs=1e-5)
    assert 'preference_accuracy' in policy.learn_mode.monitor_vars()


def test_beside_the_policys_loss():
    found = {}
    for weight in (0., 0.5):
        policy = preferring(weight=weight, **({} if weight else dict(beta=0.1)))
        found[weight] = update(policy, reward=reward)
    assert 'preference_loss' not in found[0.] and found[0.5]['preference_loss'] > 0.1
    added = found[0.5]['total_loss'] - found[0.]['total_loss']
    assert added == pytest.approx(0.5 * found[0.5]['preference_loss'], abs=1e-6)


def test_it_learns_to_prefer():
    policy = preferring(learning_rate=1e-2, epoch_per_collect=6, **ALONE)
    data = sample_groups(policy, reward=reward)
    policy.learn_mode.forward(data)
    batch = Batch.of(data)
    before, after = batch.logp_old, policy.updater.read(batch)
    gain = ((after - before) * batch.weight).sum(1)
    returns = batch.reward.sum(1)
    for group in (0, 1):
        rows = (batch.group == group).nonzero().squeeze(1)
        assert gain[rows[returns[rows].argmax()]] > gain[rows[returns[rows].argmin()]]


def test_equal_rewards_teach_nothing():
    metrics = update(preferring(**ALONE), reward=same_reward)
    assert metrics['preference_pairs'] == metrics['preference_loss'] == metrics['total_loss'] == 0


REFUSED = {
    'preference.beta = 0.5: only available with policy.learn.preference.weight above 0': dict(weight=0.),
    'group_size = 1: must be at least 2 with policy.learn.preference': dict(policy=dict(group_size=1), **ALONE),
    "micro_batch_tokens = 64: must be 'auto' or None with policy.learn.preference": dict(micro_batch_tokens=64),
    "preference.reference = 'start': needs policy.learn.kl.beta above 0": dict(reference='start', kl=dict(beta=0.)),
    'preference.reference': dict(reference='end'),
    'preference.beta': dict(beta=0.),
}


@pytest.mark.parametrize('told', REFUSED)
def test_refused(told):
    with refused(told):
        preferring(**REFUSED[told])


def test_not_in_several_processes_and_not_with_agents():
    policy = preferring()
    term = policy.terms['preference']
    with pytest.raises(ConfigError, match='not available with an agent'):
        term.bind(SimpleNamespace(trajectories=True))
    with one_of(2), pytest.raises(ConfigError, match='not available in several processes'):
        PreferenceLoss(SimpleNamespace(cfg=policy.cfg))
