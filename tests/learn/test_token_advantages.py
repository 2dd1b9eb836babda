"""Advantages of single tokens, from a config."""
import pytest
import torch

from ding_common import ConfigError
from ding_grpo.learn.advantage import Advantage
from ding_grpo.rl_utils import return_to_go, token_advantage

from tests.policies import make_batch, make_policy, sample_groups
from tests.learn.test_grpo import reward, vector
from tests.act.test_step_actor import DISCRETE, make, sample_group


def learned_advantages(policy, data):
    """The advantages (B, S) that the update learns from, and its batch."""
    seen = []
    run = policy._learning.updater.run
    policy._learning.updater.run = lambda batch, update: seen.append(batch) or run(batch, update)
    policy.learn_mode.forward(data)
    batch, = seen
    return batch.adv, batch


@pytest.mark.unittest
class TestTokenAdvantages:

    @pytest.mark.parametrize('log_prob_fn', ['linear_log_prob', 'efficient_method'])
    @pytest.mark.parametrize('sampling', [dict(), dict(top_k=5, temperature=0.7)], ids=str)
    def test_optimal_token_baseline_reads_the_distributions(self, think_answer, sampling, log_prob_fn):
        main, create = think_answer
        main.policy.learn.update(adv_method='optimal_token_baseline', log_prob_fn=log_prob_fn)
        main.policy.collect.update(sampling)
        policy = make_policy(main, create)
        data = sample_groups(policy, [0, 1], reward=reward)
        with torch.no_grad():
            found = policy._actor.read(policy._model, policy_batch(data), squares=True)
        adv, batch = learned_advantages(policy, data)
        returns = return_to_go(batch.reward, 1.)
        norm = 1 - 2 * found.logp.exp() + found.squares
        assert (norm[batch.weight != 0] > 0).all()
        expected = token_advantage(returns, batch.weight, 'optimal_token_baseline', batch.group, norm)
        assert torch.allclose(adv, expected, atol=1e-4) and adv.dim() == 2 and batch.score_norm is None

    def test_reinforce_plus_plus_is_discounted_and_white(self, think_answer):
        main, create = think_answer
        main.policy.learn.adv_method = 'reinforce_plus_plus'
        main.policy.collect.discount_factor = 0.9
        policy = make_policy(main, create)
        adv, batch = learned_advantages(policy, sample_groups(policy, [0, 1], reward=reward))
        counted = adv[batch.weight != 0]
        assert counted.mean() == pytest.approx(0, abs=1e-5) and counted.std() == pytest.approx(1, abs=1e-4)
        last = (batch.weight.sum(1) - 1).long()
        returns = torch.stack([r[n] for r, n in zip(batch.reward, last)])
        first = adv[:, 0] * batch_scale(adv, batch)
        assert torch.allclose(first - first[0], returns * 0.9 ** last - returns[0] * 0.9 ** last[0], atol=1e-4)

    @pytest.mark.parametrize('method', ['reinforce_plus_plus', 'optimal_token_baseline'])
    def test_failed_rows_take_no_part(self, think_answer, method):
        main, create = think_answer
        main.policy.learn.update(adv_method=method, learning_rate=1e-2)
        found = []
        for value in (0., 9.):
            policy = make_policy(main, create)
            data = sample_groups(policy, [0, 1], reward=reward)
            for sample in data:
                sample['failed'][0], sample['reward'][0] = 1, value
            policy.learn_mode.forward(data)
            found.append(vector(policy._model.parameters()))
        assert torch.equal(*found)

    @pytest.mark.parametrize('method', ['reinforce_plus_plus', 'optimal_token_baseline', 'max_rl', 'gpg'])
    def test_of_steps(self, method):
        policy = make(DISCRETE, learn=dict(adv_method=method, learning_rate=1e-2))
        before = vector(policy._model.parameters())
        policy.learn_mode.forward([sample_group(policy, [3, 5], lambda row, step: float(row + step))])
        after = vector(policy._model.parameters())
        assert after.isfinite().all() and not torch.equal(before, after)

    def test_the_collectors_table_shows_none_that_need_the_model(self, think_answer):
        main, create = think_answer
        for main.policy.learn.adv_method, known in (('optimal_token_baseline', False), ('reinforce_plus_plus', True)):
            policy = make_policy(main, create)
            shown = policy.advantages(sample_groups(policy, [0], reward=reward))
            assert (shown[0] is not None) == known

    def test_one_row_a_group(self, think_answer):
        main, create = think_answer
        main.policy.update(group_size=1)
        main.policy.learn.adv_method = 'reinforce_plus_plus'
        policy = make_policy(main, create)
        adv, _ = learned_advantages(policy, sample_groups(policy, [0, 1, 2], reward=lambda group, row: float(group)))
        assert adv.any()
        main.policy.learn.adv_method = 'optimal_token_baseline'
        with pytest.raises(ConfigError, match='policy.group_size = 1'):
            make_policy(main, create)

    @pytest.mark.parametrize(
        'changes, message', [
            (dict(drop_equal_groups=True), "drop_equal_groups = True: must be False with policy.learn.adv_method"),
            (dict(advantage='return_to_go_by_step'), "adv_method = 'reinforce_plus_plus': with advantage"),
            (dict(advantage='gae'), "adv_method = 'reinforce_plus_plus': with advantage 'gae'"),
        ]
    )
    def test_what_does_not_fit(self, think_answer, changes, message):
        main, create = think_answer
        main.policy.learn.update(adv_method='reinforce_plus_plus', **changes)
        with pytest.raises(ConfigError, match=message):
            make_policy(main, create)

    def test_replacements_need_a_comparison(self, think_answer):
        main, create = think_answer
        main.policy.learn.adv_method = 'reinforce_plus_plus'
        main.policy.collect.collector = dict(max_replacements=2)
        with pytest.raises(ConfigError, match='max_replacements = 2: must be 0 with policy.learn.adv_method'):
            make_policy(main, create)


@pytest.mark.unittest
class TestEqual:

    @pytest.mark.parametrize(
        'method, rewards, equal',
        [
            ('max_rl', [1., 0.], False),
            ('max_rl', [-3., 1.], True),  # the mean is not positive: every advantage is 0
            ('reinforce_plus_plus', [1., 1.], False),  # compared with all groups
            ('optimal_token_baseline', [1., 1.], True),
            ('optimal_token_baseline', [1., 0.], False),
            ('gpg', [1., 1.], True),
        ]
    )
    def test_groups_that_teach_nothing(self, method, rewards, equal):
        batch = make_batch(torch.ones(2, 1), reward=torch.tensor(rewards).unsqueeze(1))
        assert Advantage(method).equal(batch) == equal


def policy_batch(data):
    from ding_grpo.data.batch import Batch
    return Batch.of(data)


def batch_scale(adv, batch):
    """The deviation that whitening divided by, from two different returns."""
    returns = return_to_go(batch.reward, 0.9)
    counted = batch.weight != 0
    a, r = adv[counted], returns[counted]
    low, high = r.argmin(), r.argmax()
    return (r[high] - r[low]) / (a[high] - a[low])
