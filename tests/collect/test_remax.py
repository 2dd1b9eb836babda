"""A greedy episode of each group as its baseline."""
import numpy as np
import pytest
import torch
from tests.collect.test_group_collector import make_collector, summary

from ding_common import ConfigError, TaskError
from ding_grpo.data.batch import Batch
from ding_grpo.learn.advantage import Advantage
from dizoo_llm.envs import DingTokenEnv, TokenEnv
from tests.policy.helper import make_policy


class NoisyRewardEnv(DingTokenEnv):
    """A reward that tells completions apart."""

    def step(self, action):
        step = super().step(action)
        return step._replace(reward=np.array([float(np.asarray(action).sum() % 13)], dtype=np.float32))


class FailingEnv(NoisyRewardEnv):
    """The completions of an environment that runs alone cannot be scored."""
    alone = []

    def step(self, action):
        step = super().step(action)
        if step.done and FailingEnv.alone and FailingEnv.alone[-1]:
            step.info['failed'] = 'too greedy'
        return step


def remax(think_answer, **learn):
    main, create = think_answer
    main.policy.learn.update(adv_method='remax', **learn)
    return main, create


@pytest.mark.envtest
class TestGreedyBaseline:

    @pytest.mark.parametrize('env_num', [4, 8])
    def test_is_the_return_of_the_greedy_completion(self, think_answer, tmp_path, env_num):
        main, create = remax(think_answer)
        policy = make_policy(main, create)
        collector = make_collector(main, create, tmp_path, env_num=env_num, env_cls=NoisyRewardEnv, policy=policy)
        samples = collector.collect(n_sample=5, train_iter=3)
        tokens = 0
        for sample in samples:
            out = policy.eval_mode.forward({0: sample['prompt']})[0]
            assert sample['baseline'] == float(out['action'].sum() % 13)
            tokens += len(out['action'])
        assert len({s['baseline'] for s in samples}) > 1
        assert collector.envstep == sum(int(s['weight'].sum()) for s in samples) + tokens
        assert policy.learn_mode.forward(samples)['baseline_mean'] == pytest.approx(
            np.mean([s['baseline'] for s in samples])
        )

    def test_sampled_rows_are_those_without_it(self, think_answer, tmp_path):
        plain = summary(make_collector(*think_answer, tmp_path).collect(n_sample=3))
        assert summary(make_collector(*remax(think_answer), tmp_path).collect(n_sample=3)) == plain

    def test_groups_of_one_row(self, think_answer, tmp_path):
        main, create = remax(think_answer)
        main.policy.group_size = 1
        collector = make_collector(main, create, tmp_path, env_cls=NoisyRewardEnv)
        samples = collector.collect(n_sample=10)
        assert all(s['action'].shape[0] == 1 for s in samples) and any(s['baseline'] != 0 for s in samples)
        assert not all(s['equal'] for s in samples)

    def test_resumed_at_an_update(self, think_answer, tmp_path):
        whole = make_collector(*remax(think_answer), tmp_path, env_cls=NoisyRewardEnv)
        whole.collect(train_iter=0)
        state = whole.state_dict()
        met = whole.collect(train_iter=1)
        resumed = make_collector(*think_answer, tmp_path, env_cls=NoisyRewardEnv)
        resumed.load_state_dict(state)
        found = resumed.collect(train_iter=1)
        assert summary(found) == summary(met) and resumed.envstep == whole.envstep
        assert [s['baseline'] for s in found] == [s['baseline'] for s in met]

    def test_a_group_without_a_baseline_is_not_learned(self, think_answer, tmp_path, monkeypatch):
        main, create = remax(think_answer)
        policy = make_policy(main, create)
        collector = make_collector(main, create, tmp_path, env_cls=FailingEnv, policy=policy, max_failed=1.0)
        play = collector._player.play

        def noted(*args, greedy=False):
            FailingEnv.alone.append(greedy)
            return play(*args, greedy=greedy)

        monkeypatch.setattr(FailingEnv, 'alone', [])
        collector._player.play = noted
        samples = collector.collect(n_sample=2)
        assert all((s['failed'] == 1).all() for s in samples)
        assert policy.learn_mode.forward(samples)['failed'] == 1
        collector._cfg.max_failed = 0.1
        with pytest.raises(TaskError, match='the greedy completion of its group: too greedy'):
            collector.collect(n_sample=2)


@pytest.mark.unittest
class TestAdvantage:

    def sample(self, rewards, baseline):
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

    def test_by_hand(self):
        batch = Batch.of([self.sample([1., 0.], 0.25), self.sample([3.], 3.)])
        adv = Advantage('remax').of(batch)
        assert adv.tolist() == [[0.75, 0.75], [-0.25, -0.25], [0., 0.]]

    @pytest.mark.parametrize(
        'rewards, baseline, equal', [([1., 1.], 1., True), ([1., 1.], 0., False), ([2.], 2., True)]
    )
    def test_equal_to_the_greedy_one(self, rewards, baseline, equal):
        assert Advantage('remax').equal(Batch.of([self.sample(rewards, baseline)])) == equal

    def test_needs_one_start(self, think_answer):
        main, create = remax(think_answer)
        main.policy.collect.shared_start = False
        with pytest.raises(ConfigError, match='policy.collect.shared_start = False: must be True'):
            make_policy(main, create)

    def test_several_turns_without_a_discount(self, think_answer):
        from tests.policy.test_turn_masks import Chatter
        env = TokenEnv(Chatter(), max_turns=3, max_new_tokens=4, max_reply_tokens=10)
        main, create = remax(think_answer)
        make_policy(main, create, env=env)
        main.policy.collect.discount_factor = 0.9
        with pytest.raises(ConfigError, match="adv_method = 'remax': not available with env.max_turns = 3"):
            make_policy(main, create, env=env)
