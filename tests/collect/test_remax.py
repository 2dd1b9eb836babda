"""A greedy episode of each group as its baseline."""
import numpy as np
import pytest
import torch

from ding_common import ConfigError, TaskError
from ding_grpo.data.batch import Batch
from ding_grpo.learn.advantage import Advantage
from dizoo_llm.envs import DingTokenEnv, TokenEnv
from tests.collect.helper import summary
from tests.policies import make_policy
from tests.act.test_turn_masks import Chatter


class NoisyRewardEnv(DingTokenEnv):
    """A reward that tells completions apart; those in ``fails`` cannot be scored."""
    fails = ()

    def step(self, action):
        step = super().step(action)
        if np.asarray(action).tolist() in NoisyRewardEnv.fails:
            step.info['failed'] = 'too greedy'
        return step._replace(reward=np.array([float(np.asarray(action).sum() % 13)], dtype=np.float32))


@pytest.fixture
def remax(think_answer):
    think_answer[0].policy.learn.adv_method = 'remax'
    return think_answer


@pytest.mark.envtest
class TestGreedyBaseline:

    @pytest.mark.parametrize('env_num', [4, 8])
    def test_is_the_return_of_the_greedy_completion(self, remax, collector, env_num):
        policy = make_policy(*remax)
        made = collector(env_num=env_num, env_cls=NoisyRewardEnv, policy=policy)
        samples = made.collect(n_sample=5, train_iter=3)
        greedy = [policy.eval_mode.forward({0: s['prompt']})[0]['action'] for s in samples]
        baselines = [float(action.sum() % 13) for action in greedy]
        assert [s['baseline'] for s in samples] == baselines and len(set(baselines)) > 1
        assert made.envstep == sum(int(s['weight'].sum()) for s in samples) + sum(map(len, greedy))
        assert policy.learn_mode.forward(samples)['baseline_mean'] == pytest.approx(np.mean(baselines))

    def test_sampled_rows_are_those_without_it(self, think_answer, collector):
        plain = summary(collector().collect(n_sample=3))
        think_answer[0].policy.learn.adv_method = 'remax'
        assert summary(collector().collect(n_sample=3)) == plain

    def test_groups_of_one_row(self, remax, collector):
        remax[0].policy.group_size = 1
        samples = collector(env_cls=NoisyRewardEnv).collect(n_sample=10)
        assert all(s['action'].shape[0] == 1 for s in samples) and any(s['baseline'] != 0 for s in samples)
        assert not all(s['equal'] for s in samples)

    def test_a_group_without_a_baseline_is_not_learned(self, remax, collector, monkeypatch):
        policy = make_policy(*remax)
        prompts = [s['prompt'] for s in collector(policy=policy).collect(n_sample=4)]  # of all problems
        greedy = [policy.eval_mode.forward({0: prompt})[0]['action'].tolist() for prompt in prompts]
        monkeypatch.setattr(NoisyRewardEnv, 'fails', greedy)
        samples = collector(env_cls=NoisyRewardEnv, policy=policy, max_failed=1.0).collect(n_sample=2)
        assert all((s['failed'] == 1).all() for s in samples)
        assert policy.learn_mode.forward(samples)['failed'] == 1
        with pytest.raises(TaskError, match='the greedy completion of its group: too greedy'):
            collector(env_cls=NoisyRewardEnv, policy=policy).collect(n_sample=2)


def sample(rewards, baseline):
    rows = len(rewards)
    return dict(
        prompt=torch.tensor([1]),
        action=torch.ones(rows, 2).long(),
        logp_old=torch.zeros(rows, 2),
        weight=torch.ones(rows, 2),
        length=torch.full((rows, ), 2),
        turn=torch.zeros(rows, 2).long(),
        anchor=torch.zeros(rows, 1).long(),
        reward=torch.tensor([[0., r] for r in rewards]),
        reward_parts={},
        truncated=torch.zeros(rows),
        failed=torch.zeros(rows),
        baseline=baseline
    )


@pytest.mark.unittest
class TestAdvantage:

    def test_by_hand(self):
        batch = Batch.of([sample([1., 0.], 0.25), sample([3.], 3.)])
        assert Advantage('remax').of(batch).tolist() == [[0.75, 0.75], [-0.25, -0.25], [0., 0.]]

    @pytest.mark.parametrize(
        'rewards, baseline, equal', [([1., 1.], 1., True), ([1., 1.], 0., False), ([2.], 2., True)]
    )
    def test_equal_to_the_greedy_one(self, rewards, baseline, equal):
        assert Advantage('remax').equal(Batch.of([sample(rewards, baseline)])) == equal

    @pytest.mark.parametrize(
        'env, key, value, message', [
            (None, 'shared_start', False, 'policy.collect.shared_start = False: must be True'),
            (
                TokenEnv(Chatter(), max_turns=3, max_new_tokens=4, max_reply_tokens=10), 'discount_factor', 0.9,
                "adv_method = 'remax': not available with env.max_turns = 3"
            ),
        ]
    )
    def test_needs_one_start_and_several_turns_no_discount(self, remax, env, key, value, message):
        make_policy(*remax, env=env)
        remax[0].policy.collect[key] = value
        with pytest.raises(ConfigError, match=message):
            make_policy(*remax, env=env)
