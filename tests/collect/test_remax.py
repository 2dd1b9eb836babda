"""A greedy episode of each group as its baseline."""
import numpy as np
import pytest
import torch

from ding_common import ConfigError, TaskError
from ding_grpo.learn.advantage import Advantage
from dizoo_llm.envs import DingTokenEnv, TokenEnv
from tests.collect.helper import summary
from tests.policies import Chatter, make_batch, make_policy, token_policy


class NoisyRewardEnv(DingTokenEnv):
    """A reward that tells completions apart; those in ``fails`` cannot be scored."""
    fails = []

    def step(self, action):
        step = super().step(action)
        if np.asarray(action).tolist() in self.fails:
            step.info['failed'] = 'too greedy'
        return step._replace(reward=np.array([float(np.asarray(action).sum() % 13)], dtype=np.float32))


@pytest.fixture
def remax(think_answer):
    think_answer[0].policy.learn.adv_method = 'remax'
    return think_answer


@pytest.mark.envtest
class TestGreedyBaseline:

    def test_is_the_return_of_the_greedy_completion(self, remax, collector):
        policy = make_policy(*remax)
        made = collector(env_cls=NoisyRewardEnv, policy=policy)
        samples = made.collect(n_sample=5, train_iter=3)
        greedy = [policy.eval_mode.forward({0: s['prompt']})[0]['action'] for s in samples]
        baselines = [float(action.sum() % 13) for action in greedy]
        assert [s['baseline'] for s in samples] == baselines and len(set(baselines)) > 1
        assert made.envstep == sum(int(s['weight'].sum()) for s in samples) + sum(map(len, greedy))
        assert policy.learn_mode.forward(samples)['baseline_mean'] == pytest.approx(np.mean(baselines))

    def test_sampled_rows_are_those_without_it(self, think_answer, collector):
        plain = summary(collector().collect(n_sample=3))
        think_answer[0].policy.learn.adv_method = 'remax'
        assert summary(collector(env_num=4).collect(n_sample=3)) == plain

    def test_groups_of_one_row(self, remax, collector):
        remax[0].policy.group_size = 1
        samples = collector(env_cls=NoisyRewardEnv).collect(n_sample=10)
        assert all(s['action'].shape[0] == 1 for s in samples) and any(s['baseline'] != 0 for s in samples)
        assert not all(s['equal'] for s in samples)

    def test_a_group_without_a_baseline_is_not_learned(self, remax, collector):
        policy = make_policy(*remax)
        prompts = [s['prompt'] for s in collector(policy=policy).collect(n_sample=4)]  # of all problems
        greedy = [policy.eval_mode.forward({0: prompt})[0]['action'].tolist() for prompt in prompts]
        fails = type('Fails', (NoisyRewardEnv, ), dict(fails=greedy))
        samples = collector(env_cls=fails, policy=policy, max_failed=1.0).collect(n_sample=2)
        assert all((s['failed'] == 1).all() for s in samples)
        assert policy.learn_mode.forward(samples)['failed'] == 1
        with pytest.raises(TaskError, match='the greedy completion of its group: too greedy'):
            collector(env_cls=fails, policy=policy).collect(n_sample=2)


def batch(rewards, baselines, group):
    """Rows of two steps, with the baselines and the numbers of their groups."""
    reward = torch.tensor([[0., r] for r in rewards])
    weight = torch.ones_like(reward)
    return make_batch(weight, reward=reward, baseline=torch.tensor(baselines), group=torch.tensor(group))


class TestAdvantage:

    def test_by_hand(self):
        found = Advantage('remax').of(batch([1., 0., 3.], [0.25, 0.25, 3.], [0, 0, 1]))
        assert found.tolist() == [[0.75, 0.75], [-0.25, -0.25], [0., 0.]]

    @pytest.mark.parametrize(
        'rewards, baseline, equal', [([1., 1.], 1., True), ([1., 1.], 0., False), ([2.], 2., True)]
    )
    def test_equal_to_the_greedy_one(self, rewards, baseline, equal):
        found = batch(rewards, [baseline] * len(rewards), [0] * len(rewards))
        assert Advantage('remax').equal(found) == equal

    def test_needs_one_start_and_several_turns_no_discount(self):
        with pytest.raises(ConfigError, match='policy.collect.shared_start = False: must be True'):
            token_policy(adv_method='remax', collect=dict(shared_start=False))
        turns = TokenEnv(Chatter(), max_turns=3, max_new_tokens=4, max_reply_tokens=10)
        token_policy(adv_method='remax', env=turns)
        with pytest.raises(ConfigError, match="adv_method = 'remax': not available with env.max_turns = 3"):
            token_policy(adv_method='remax', env=turns, collect=dict(discount_factor=0.9))
