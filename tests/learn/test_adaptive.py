"""KL in the reward, coefficients that follow a target, and learning from tokens of high entropy only."""
import copy

import pytest
import torch
from easydict import EasyDict

from ding_common import ConfigError
from ding_grpo.learn.adaptive import Coefficients
from ding_grpo.learn.advantage import with_kl_in_reward
from ding_grpo.rl_utils import group_advantage, high_entropy, kl_estimate

from tests.policies import make_batch, make_policy, sample_groups
from tests.learn.test_grpo import reward, vector
from tests.learn.test_token_advantages import learned_advantages

PLAIN = dict(beta=0.1, entropy_weight=0.0, kl_target=None, kl_horizon=100, entropy_target=None, entropy_step=0.01)


def policy_of(think_answer, **learn):
    main, create = think_answer
    main.policy.learn.update(dict(dict(learning_rate=1e-2, entropy_weight=0.0), **learn))
    return make_policy(main, create)


def move_reference(policy):
    """A reference that differs from the policy."""
    with torch.no_grad():
        for p in policy._learning.reference.copy.parameters():
            p.mul_(1.3)
    return policy


@pytest.mark.unittest
class TestCoefficients:

    def test_kl_by_hand(self):
        # KL 0.1 is far above the target 0.02: 20 % in 100 rows, 10 % in 50. Then 0.019: 5 % below, 2.5 % in 50 rows.
        found = Coefficients(EasyDict(PLAIN, kl_target=0.02))
        found.follow(dict(kl=0.1), 50)
        assert found.beta == pytest.approx(0.11)
        found.follow(dict(kl=0.019), 50)
        assert found.beta == pytest.approx(0.11 * 0.975)
        found.follow({}, 50)  # no step: nothing was measured
        assert found.beta == pytest.approx(0.11 * 0.975)
        found.follow(dict(kl=0.), 1000)  # at most 20 % in an update
        assert found.beta == pytest.approx(0.11 * 0.975 * 0.8)

    def test_entropy_by_hand(self):
        found, applied = Coefficients(EasyDict(PLAIN, entropy_target=0.5)), []
        for entropy in (0.4, 0.5, 0.6, 0.6, 0.6, 0.2):
            applied.append(found.entropy_weight)
            found.follow(dict(entropy=entropy), 8)
        # after 0.4 and 0.5: 0.01, 0.02. After 0.6: off, while the coefficient falls to 0.01, 0 and 0.
        assert applied == pytest.approx([0, 0.01, 0.02, 0, 0, 0]) and found.entropy_weight == pytest.approx(0.01)

    def test_without_targets_nothing_changes_and_nothing_is_saved(self):
        found = Coefficients(EasyDict(PLAIN, entropy_weight=0.3))
        found.follow(dict(kl=9., entropy=9.), 100)
        assert (found.beta, found.entropy_weight) == (0.1, 0.3)
        assert found.state_dict() == {} and found.metrics() == {} and found.names == []

    def test_states_of_runs_without_the_target(self):
        cfg = EasyDict(PLAIN, kl_target=0.02, entropy_target=1.0)
        saved = Coefficients(cfg)
        saved.follow(dict(kl=1., entropy=0.1), 100)
        one_target = Coefficients(EasyDict(PLAIN, entropy_target=1.0))
        one_target.load_state_dict(saved.state_dict())
        assert (one_target.beta, one_target.entropy_weight) == (0.1, 0.01)
        fresh = Coefficients(cfg)
        fresh.load_state_dict({})
        assert (fresh.beta, fresh.entropy_weight) == (0.1, 0)


@pytest.mark.unittest
class TestKLInReward:

    @pytest.mark.parametrize('kl_type', ['k1', 'k2', 'k3'])
    def test_of_each_token_by_hand(self, kl_type):
        logp, ref = torch.tensor([[-1., -2., -9.]]), torch.tensor([[-1.5, -1., float('nan')]])
        batch = make_batch(
            torch.tensor([[1., 1., 0.]]), logp_old=logp, logp_ref=ref, reward=torch.tensor([[0., 1., 0.]])
        )
        # log ratios 0.5 and -1
        kl = dict(k1=[0.5, -1.], k2=[0.125, 0.5], k3=[0.5 + 0.6065307 - 1, -1 + 2.7182818 - 1])[kl_type]
        found = with_kl_in_reward(batch, 0.1, kl_type).reward[0].tolist()
        assert found == pytest.approx([-0.1 * kl[0], 1 - 0.1 * kl[1], 0])

    def test_rows_are_compared_by_the_reward_less_their_kl(self, think_answer):
        policy = move_reference(policy_of(think_answer, beta=0.5, kl_in_reward=True, adv_method='no_std'))
        data = sample_groups(policy, [0, 1], reward=reward)
        adv, batch = learned_advantages(policy, data)
        assert batch.logp_ref is not None
        kl = kl_estimate(batch.logp_old, batch.logp_ref, 'k3').masked_fill(batch.weight == 0, 0).sum(1)
        plain = torch.cat([sample['reward'].sum(1) for sample in data])
        expected = group_advantage(plain - 0.5 * kl, batch.group, 'no_std')
        assert kl.abs().min() > 1e-4 and torch.allclose(adv, expected, atol=1e-6)

    def test_the_loss_has_no_second_kl(self, think_answer):
        """Equal rewards without a KL between them: nothing is left to learn from, unlike with the KL in the loss."""
        policy = policy_of(think_answer, beta=0.5, kl_in_reward=True, kl_type='k2')
        data = sample_groups(policy, [0, 1], reward=lambda group, row: 1.)
        policy._actor.without_adapters = lambda model: _same_reference(policy, data)
        metrics = policy.learn_mode.forward(data)
        assert metrics['policy_loss'] == pytest.approx(0, abs=1e-6) and metrics['kl'] == pytest.approx(0, abs=1e-6)

    def test_with_returns_to_go_and_a_critic(self, think_answer):
        for learn in (dict(adv_method='reinforce_plus_plus'), dict(advantage='gae', adv_method=None)):
            policy = move_reference(policy_of(think_answer, beta=0.5, kl_in_reward=True, **learn))
            adv, batch = learned_advantages(policy, sample_groups(policy, [0, 1], reward=reward))
            assert adv.dim() == 2 and adv.isfinite().all()
            assert (batch.reward[:, 0] != 0).any()  # not the last token alone

    def test_the_collectors_table_shows_no_advantages(self, think_answer):
        policy = policy_of(think_answer, beta=0.5, kl_in_reward=True)
        assert policy.advantages(sample_groups(policy, [0])) == [None]


def _same_reference(policy, data):
    from contextlib import nullcontext
    policy._learning.reference.copy.load_state_dict(policy._model.state_dict())
    return nullcontext()


@pytest.mark.unittest
class TestTargets:

    @pytest.mark.parametrize('kl_in_reward', [False, True])
    def test_a_resumed_run_is_bit_identical(self, think_answer, kl_in_reward):
        learn = dict(
            beta=0.1, kl_in_reward=kl_in_reward, kl_target=1e-6, kl_horizon=8, entropy_target=9.0, entropy_step=0.1
        )
        policy, resumed = (move_reference(policy_of(think_answer, **learn)) for _ in range(2))
        data = sample_groups(policy, [0, 1], reward=reward)
        first = policy.learn_mode.forward(copy.deepcopy(data))
        resumed.learn_mode.load_state_dict(copy.deepcopy(policy.learn_mode.state_dict()))
        metrics = [one.learn_mode.forward(copy.deepcopy(data)) for one in (policy, resumed)]
        assert torch.equal(*(vector(one._model.parameters()) for one in (policy, resumed)))
        assert (first['beta'], first['entropy_weight']) == (0.1, 0)  # the bonus waits for a measurement
        for m in metrics:
            assert m['beta'] == pytest.approx(0.12) and m['entropy_weight'] == pytest.approx(0.1)

    def test_coefficients_change_what_is_learned(self, think_answer):
        found = []
        for learn in (dict(), dict(kl_target=1e-6, kl_horizon=1), dict(entropy_target=9.0, entropy_step=0.5)):
            think_answer[0].policy.learn.update(dict(kl_target=None, kl_horizon=10000))
            policy = move_reference(policy_of(think_answer, beta=0.5, **learn))
            data = sample_groups(policy, [0, 1], reward=reward)
            for _ in range(2):
                policy.learn_mode.forward(copy.deepcopy(data))
            found.append(vector(policy._model.parameters()))
        assert not torch.allclose(found[0], found[1], atol=1e-5) and not torch.allclose(found[0], found[2], atol=1e-5)

    def test_metrics_only_with_a_target(self, think_answer):
        policy = policy_of(think_answer, beta=0.1)
        assert not {'beta', 'entropy_weight'} & set(policy.learn_mode.forward(sample_groups(policy, [0, 1])))
        assert 'coefficients' not in policy.learn_mode.state_dict()
        policy = policy_of(think_answer, beta=0.1, kl_target=0.1)
        assert 'beta' in policy.learn_mode.monitor_vars() and 'entropy_weight' not in policy.learn_mode.monitor_vars()


@pytest.mark.unittest
class TestTopEntropy:

    def test_by_hand(self):
        entropy = torch.tensor([[0.1, 0.9, 5.], [0.5, 0.4, 0.9]])
        weight = torch.tensor([[1., 1., 0.], [1., 1., 1.]])
        for share, expected in ((0.2, [1, 5]), (0.4, [1, 5]), (0.6, [1, 3, 5]), (1., [0, 1, 3, 4, 5])):
            # 0.2 of 5 tokens is one; the two of entropy 0.9 are equal
            assert high_entropy(entropy, weight, share).flatten().nonzero().flatten().tolist() == expected
        assert not high_entropy(entropy, torch.zeros(2, 3), 0.2).any()
        with pytest.raises(ValueError, match='share = 1.5: must be at most 1'):
            high_entropy(entropy, weight, 1.5)

    def test_others_have_no_advantage_and_no_gradient(self, think_answer):
        policy = policy_of(think_answer, top_entropy=0.2)
        data = sample_groups(policy, [0, 1], reward=reward)
        plain, _ = learned_advantages(policy_of(think_answer, top_entropy=None), copy.deepcopy(data))
        entropy = policy._learning.updater.entropy(batch_of(data))
        adv, batch = learned_advantages(policy_of(think_answer, top_entropy=0.2), data)
        high = high_entropy(entropy, batch.weight, 0.2)
        assert 0 < high.sum() < 0.3 * batch.weight.sum()
        assert torch.allclose(adv, torch.where(high, plain.unsqueeze(1), 0.), atol=1e-6)

    def test_all_tokens_are_as_without(self, think_answer):
        found = []
        for share in (None, 1.0):
            policy = policy_of(think_answer, top_entropy=share)
            policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward))
            found.append(vector(policy._model.parameters()))
        assert torch.equal(*found)

    @pytest.mark.parametrize('loss', ['gmpo', 'dro', 'clip_cov', 'kl_cov'])
    def test_losses_that_do_not_vanish_with_the_advantage(self, think_answer, loss):
        with pytest.raises(ConfigError, match='policy.learn.top_entropy = 0.2: not available with surrogate'):
            policy_of(think_answer, top_entropy=0.2, loss=loss, clip_ratio=None, adv_method=None)

    def test_cpgd_without_drift(self, think_answer):
        policy_of(think_answer, top_entropy=0.2, loss='cpgd')
        with pytest.raises(ConfigError, match="not available with surrogate 'cpgd'"):
            policy_of(think_answer, top_entropy=0.2, loss='cpgd', surrogate_options=dict(drift=0.1))


@pytest.mark.unittest
@pytest.mark.parametrize(
    'learn, message', [
        (dict(kl_in_reward=True), 'kl_in_reward = True: needs policy.learn.beta above 0'),
        (dict(kl_target=0.1), 'kl_target = 0.1: needs policy.learn.beta above 0'),
        (dict(kl_target=0., beta=0.1), r'kl_target = 0.0: must be a number in \(0'),
        (dict(kl_horizon=5), 'kl_horizon = 5: only available with policy.learn.kl_target'),
        (dict(entropy_step=0.1), 'entropy_step = 0.1: only available with policy.learn.entropy_target'),
        (dict(beta=0.1, kl_in_reward=True, kl_ratio_correction=True), 'kl_ratio_correction = True: must be False with'),
        (dict(beta=0.1, kl_in_reward=True, reward_aggregation='normalize_then_sum'), 'reward_aggregation = .*must be'),
        (dict(top_entropy=1.5), r'top_entropy = 1.5: must be a number in \(0, 1\]'),
    ]
)
def test_wrong_keys(think_answer, learn, message):
    with pytest.raises(ConfigError, match=f'policy.learn.{message}'):
        policy_of(think_answer, **learn)


def batch_of(data):
    from ding_grpo.data.batch import Batch
    return Batch.of(data)
