import pytest
from scipy.stats import mannwhitneyu

from ding_grpo.compare.statistics import interquartile_mean, probability_of_improvement

NEVER = float('-inf')


@pytest.mark.unittest
class TestInterquartileMean:

    @pytest.mark.parametrize(
        'values, mean',
        [
            ([1, 2, 6], 3),  # a quarter of three, rounded down, is 0
            ([100, 2, 4, -50], 3),  # the middle two
            ([3, 100, 2, -50, 7], 4),  # the middle three
            ([0, 1, 2, 3, 4, 5, 90, 91], 3.5),  # the middle four of eight: 2, 3, 4, 5
        ]
    )
    def test_by_hand(self, values, mean):
        assert interquartile_mean(values).value == pytest.approx(mean)

    def test_interval_by_hand(self):
        """The mean of a resample of (0, 0, 3) is 0, 1, 2 or 3 with probability 8, 12, 6 and 1 of 27. The ends of the
        interval are at 2.5 %: 0 has 30 %, and 3 has 3.7 %."""
        found = interquartile_mean([0, 0, 3])
        assert (found.low, found.high) == (0, 3)

    def test_equal_values_have_an_interval_of_no_width(self):
        assert interquartile_mean([5, 5, 5]) == (5, 5, 5)

    def test_equal_data_give_equal_intervals(self):
        values = [1.5, 2.5, 7.25, 3.0, 4.5]
        assert interquartile_mean(values) == interquartile_mean(values)
        assert interquartile_mean(values).low < interquartile_mean(values).value < interquartile_mean(values).high

    @pytest.mark.parametrize('values', [[], [1, 2], [1, 2, 3, float('inf')]])
    def test_too_few_or_never_reached(self, values):
        assert interquartile_mean(values) is None


@pytest.mark.unittest
class TestProbabilityOfImprovement:

    def test_by_hand(self):
        """1 beats 0 of (2, 2, 1) and ties with one; 2 beats one and ties with two; 3 beats all: 0.5 + 2 + 3 of 9."""
        assert probability_of_improvement([1, 2, 3], [2, 2, 1]).value == pytest.approx(5.5 / 9)

    def test_of_a_peer(self):
        """Mann and Whitney's U, divided by the number of pairs, as rliable computes it."""
        first, other = [3, 1, 4, 1, 5, 9], [2, 6, 5, 3]
        found = probability_of_improvement(first, other)
        assert found.value == pytest.approx(mannwhitneyu(first, other).statistic / 24)
        assert 0 <= found.low < found.value < found.high <= 1
        back = probability_of_improvement(other, first)
        assert back.value == pytest.approx(1 - found.value)

    def test_a_seed_that_never_reached_the_bar_ties_with_another(self):
        """(-5, never, never) and (-7, -7, never): 3 pairs won, 2 tied, 4 lost."""
        assert probability_of_improvement([-5, NEVER, NEVER], [-7, -7, NEVER]).value == pytest.approx(4 / 9)

    def test_always_better(self):
        assert probability_of_improvement([4, 5, 6], [1, 2, 3]) == (1, 1, 1)

    def test_too_few(self):
        assert probability_of_improvement([1, 2, 3], [1, 2]) is None
