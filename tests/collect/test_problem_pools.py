"""The order of problems: shuffled epochs, and pools by success rate."""
import numpy as np
import pytest
import torch
from easydict import EasyDict

from ding_grpo.collect.problem_order import ProblemOrder, ProblemPools
from ding_grpo.config.keys import DEFAULTS
from dizoo_llm.envs import DingTokenEnv
from tests.policies import make_policy
from tests.same import same


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


def test_epochs_have_every_problem_once_as_a_function_of_seed_and_position():
    drawn = draw(ProblemOrder(3, 10), 0, 40)
    epochs = [drawn[i:i + 10] for i in range(0, 40, 10)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs) and len(set(map(tuple, epochs))) == 4
    backwards = ProblemOrder(3, 10)
    assert [backwards.problem(i) for i in reversed(range(40))] == drawn[::-1]
    assert draw(ProblemOrder(4, 10), 0, 40) != drawn


class TestProblemPools:

    def test_without_success_rates_it_is_the_epoch_order(self):
        assert draw(pools(), 0, 30) == draw(ProblemOrder(3, 6), 0, 30)

    def test_sizes_by_hand_of_known_rates_alone(self):
        order = pools()
        order.finish(0, [(0, 1.0), (1, 0.9), (2, 0.89), (3, 0.1), (4, 0.11), (4, 0.0)])
        assert order.sizes() == dict(easy_problems=2 / 6, hard_problems=2 / 6)  # problem 4: 0.11 + 0.5 (0 - 0.11)
        other = pools(5)
        other.load_state_dict(order.state_dict())  # of another number of problems
        assert other.sizes() == dict(easy_problems=0, hard_problems=0)

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
        draw(one, 0, 3)
        other.problem(5)
        for order in (one, other):
            order.finish(6, [(0, 1.0), (3, 0.0)])
        assert draw(one, 6, 40) == draw(other, 6, 40)

    def test_success_rates_of_a_collect_count_from_the_next_one(self):
        order = pools(easy_share=1e-9)
        assert order.problem(0) == pools().problem(0)
        order.finish(3, [(i, 1.0) for i in range(5)])
        assert set(draw(order, 3, 20)) == {5}  # the only one that is not easy

    def test_resumed(self):
        order, again = pools(), pools()
        draw(order, 0, 7)
        order.finish(7, [(i, i / 5) for i in range(6)])
        again.load_state_dict(order.state_dict())
        for start in (7, 57):
            assert draw(again, start, 50) == draw(order, start, 50)
            for each in (order, again):
                each.finish(start + 50, [(2, 1.0)])


@pytest.mark.envtest
class TestCollector:

    def test_solved_problems_come_less_often_also_in_a_resumed_run(self, think_answer, collector):
        easy = dict(easy_share=0.1, hard_share=0.3)
        think_answer[0].policy.collect.update(problem_order='pools', pools=easy)
        made, other = (collector('base', number, RewardByPrompt) for number in (8, 4))
        for i in range(20):
            made.collect(n_sample=4, train_iter=i)
        state = made.state_dict()
        rate = state['pools']['rate']  # four problems: 0 and 3 are never solved, 1 always, 2 by some
        assert rate[1] == 1 and rate[0] == rate[3] == 0 and 0 < rate[2] < 1
        assert state['pools']['cursor'] > 1.5 * 80  # problems were passed over
        expected = made.collect(n_sample=3, train_iter=20)
        other.load_state_dict(state)
        found = other.collect(n_sample=3, train_iter=20)
        assert all(torch.equal(a['action'], b['action']) for a, b in zip(expected, found))
        same(other.state_dict()['pools'], made.state_dict()['pools'])

    def test_filtered_groups_are_replaced_and_the_rest_is_not_learned(self, think_answer, collector):
        policy = make_policy(*think_answer)
        options = dict(env_cls=RewardByPrompt, policy=policy, reward_range=(0.25, 0.75))
        samples = collector(**options).collect(n_sample=8)
        mean = [s['reward'].sum(1).mean().item() for s in samples]
        assert [s['filtered'] for s in samples] == [not 0.25 <= m <= 0.75 for m in mean]
        filtered = [s for s in samples if s['filtered']]
        assert 0 < len(filtered) < 8
        assert policy.learn_mode.forward(samples)['filtered_groups'] == len(filtered) / 8
        before = {name: value.clone() for name, value in policy.learn_mode.state_dict()['model'].items()}
        for sample in filtered:
            sample['reward'] += torch.rand(sample['reward'].shape)  # there would be something to learn
        policy.learn_mode.forward(filtered)
        same(before, policy.learn_mode.state_dict()['model'])
        again = collector(max_replacements=len(filtered), **options).collect(n_sample=8)
        assert sum(s['filtered'] for s in again) < len(filtered) and again[0]['replaced_groups'] == len(filtered) / 8
