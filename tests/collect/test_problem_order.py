import pytest

from ding_grpo.collect.problem_order import ProblemOrder


@pytest.mark.unittest
class TestProblemOrder:

    def test_every_problem_once_an_epoch(self):
        order = ProblemOrder(3, 10)
        drawn = [order.problem(i) for i in range(40)]
        epochs = [drawn[i:i + 10] for i in range(0, 40, 10)]
        assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == 4

    def test_a_function_of_seed_and_position(self):
        drawn = [ProblemOrder(3, 10).problem(i) for i in range(30)]
        backwards = ProblemOrder(3, 10)
        assert [backwards.problem(i) for i in reversed(range(30))] == drawn[::-1]
        assert [ProblemOrder(4, 10).problem(i) for i in range(30)] != drawn
