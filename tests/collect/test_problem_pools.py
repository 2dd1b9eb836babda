import numpy as np
import pytest
import torch
from easydict import EasyDict
from tests.collect.test_group_collector import make_collector, summary

from ding_common import ConfigError
from ding_grpo.collect.problem_order import ProblemOrder
from ding_grpo.collect.problem_pools import ProblemPools
from ding_grpo.config.keys import DEFAULTS
from dizoo_llm.envs import DingTokenEnv
from tests.policy.helper import make_policy
from tests.policy.test_grpo import vector


def pools(number=6, seed=3, **changes):
    return ProblemPools(seed, number, EasyDict(DEFAULTS['collect']['pools'], **changes))


def draw(order, start, number):
    return [order.problem(start + i) for i in range(number)]


class RewardByPrompt(DingTokenEnv):
    """Some problems are always solved, some never, some by half of the completions."""

    def step(self, action):
        step = super().step(action)
        number = step.info['index'] % 3
        return step._replace(reward=np.array([[0., 1., float(action[0] % 2)][number]], dtype=np.float32))


@pytest.mark.unittest
class TestProblemPools:

    def test_without_success_rates_it_is_the_epoch_order(self):
        order, found = ProblemOrder(3, 6), pools()
        assert draw(found, 0, 30) == [order.problem(i) for i in range(30)]

    def test_pools_by_hand(self):
        order = pools()
        order.finish(0, [(0, 1.0), (1, 0.9), (2, 0.89), (3, 0.1), (4, 0.11), (4, 0.0)])
        assert order.sizes() == dict(easy_problems=2 / 6, hard_problems=2 / 6)  # problem 4: 0.11 + 0.5 (0 - 0.11)
        assert [order._share(rate) for rate in order._rate] == [0.25, 0.25, 1.0, 0.5, 0.5, 1.0]

    def test_how_often_problems_come(self):
        order = pools(easy_share=0.2, hard_share=0.6)
        order.finish(0, [(0, 1.0), (1, 0.5), (2, 0.0)])
        count = np.bincount(draw(order, 0, 20_000), minlength=6)
        epochs = count[3]
        assert count[1] == epochs or abs(count[1] - epochs) == 1  # once an epoch; the last one is cut
        assert count[0] / epochs == pytest.approx(0.2, abs=0.02)  # three standard errors are 0.019
        assert count[2] / epochs == pytest.approx(0.6, abs=0.025)

    def test_processes_that_ask_for_other_positions_stay_together(self):
        one, other = pools(), pools()
        rates = [(0, 1.0), (3, 0.0)]
        first = draw(one, 0, 3), other.problem(5)
        one.finish(6, rates)
        other.finish(6, rates)
        assert first[1] == pools().problem(5)
        assert draw(one, 6, 40) == draw(other, 6, 40)

    def test_success_rates_of_a_collect_count_from_the_next_one(self):
        order, plain = pools(easy_share=1e-9), pools()
        expected = draw(plain, 0, 6)
        assert order.problem(0) == expected[0]
        order.finish(3, [(i, 1.0) for i in range(5)])
        assert set(draw(order, 3, 20)) == {5}  # the only one that is not easy

    def test_resumed(self):
        order = pools()
        draw(order, 0, 7)
        order.finish(7, [(i, i / 5) for i in range(6)])
        state = order.state_dict()
        expected = draw(order, 7, 50)
        order.finish(57, [(2, 1.0)])
        again = pools()
        again.load_state_dict(state)
        assert draw(again, 7, 50) == expected
        again.finish(57, [(2, 1.0)])
        assert draw(again, 57, 50) == draw(order, 57, 50)

    def test_another_number_of_problems_forgets_the_rates(self):
        order = pools(5)
        order.load_state_dict(pools(6).state_dict())
        assert np.isnan(order._rate).all() and len(order._rate) == 5


@pytest.mark.envtest
class TestCollector:

    def curriculum(self, think_answer):
        main, create = think_answer
        main.policy.collect.update(problem_order='pools', pools=dict(easy_share=0.1, hard_share=0.3))
        return main, create

    def test_solved_problems_come_less_often(self, think_answer, tmp_path):
        collector = make_collector(*self.curriculum(think_answer), tmp_path, env_cls=RewardByPrompt)
        for i in range(20):
            collector.collect(n_sample=4, train_iter=i)
        rate = collector._order._rate  # four problems: 0 and 3 are never solved, 1 always, 2 by some
        assert rate[1] == 1 and rate[0] == rate[3] == 0 and 0 < rate[2] < 1
        assert collector._order.sizes() == dict(easy_problems=0.25, hard_problems=0.5)
        assert collector._order._cursor > 1.5 * 80  # problems were passed over

    @pytest.mark.parametrize('env_num', [4, 8])
    def test_resumed_at_an_update(self, think_answer, tmp_path, env_num):
        main, create = self.curriculum(think_answer)
        whole, met, states = make_collector(main, create, tmp_path, env_cls=RewardByPrompt), [], []
        for i in range(5):
            states.append(whole.state_dict())
            met.append(summary(whole.collect(n_sample=3, train_iter=i)))
        resumed = make_collector(main, create, tmp_path, env_num=env_num, env_cls=RewardByPrompt)
        resumed.load_state_dict(states[3])
        assert [summary(resumed.collect(n_sample=3, train_iter=i)) for i in (3, 4)] == met[3:]
        assert torch.equal(resumed.state_dict()['pools']['rate'], whole.state_dict()['pools']['rate'])

    def test_filtered_groups_are_replaced_and_the_rest_is_not_learned(self, think_answer, tmp_path):
        policy = make_policy(*think_answer)
        collector = make_collector(
            *think_answer, tmp_path, env_cls=RewardByPrompt, policy=policy, reward_range=(0.25, 0.75)
        )
        samples = collector.collect(n_sample=8)
        mean = [s['reward'].sum(1).mean().item() for s in samples]
        assert [s['filtered'] for s in samples] == [not 0.25 <= m <= 0.75 for m in mean]
        filtered = [s for s in samples if s['filtered']]
        assert 0 < len(filtered) < 8
        metrics = policy.learn_mode.forward(samples)
        assert metrics['filtered_groups'] == len(filtered) / 8
        before = vector(policy._model.parameters())
        for sample in filtered:
            sample['reward'] += torch.rand(sample['reward'].shape)  # there would be something to learn
        policy.learn_mode.forward(filtered)
        assert torch.equal(before, vector(policy._model.parameters()))
        replacing = make_collector(
            *think_answer,
            tmp_path,
            env_cls=RewardByPrompt,
            policy=policy,
            reward_range=(0.25, 0.75),
            max_replacements=len(filtered)
        )
        again = replacing.collect(n_sample=8)
        assert sum(s['filtered'] for s in again) < len(filtered) and again[0]['replaced_groups'] == len(filtered) / 8

    @pytest.mark.parametrize(
        'collect, message', [
            (dict(pools=dict(easy_from=0.5)), "pools.easy_from = 0.5: only available with .*problem_order = 'pools'"),
            (dict(problem_order='pools', pools=dict(hard_to=0.9)), 'hard_to = 0.9: must be below easy_from = 0.9'),
            (dict(problem_order='pools', pools=dict(easy_share=0)), r'easy_share = 0: must be a number in \(0, 1\]'),
            (dict(collector=dict(reward_range=(0.9, 0.1))), 'reward_range = .*: must be two numbers'),
        ]
    )
    def test_wrong_values(self, think_answer, collect, message):
        main, create = think_answer
        main.policy.collect.update(collect)
        with pytest.raises(ConfigError, match=message):
            make_policy(main, create)
