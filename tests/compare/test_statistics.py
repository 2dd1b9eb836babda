import pytest
from scipy.stats import mannwhitneyu

from ding_grpo.compare.statistics import interquartile_mean, probability_of_improvement

NEVER = float('-inf')


@pytest.mark.parametrize(
    'values, mean',
    [
        ([1, 2, 6], 3),  # a quarter of three, rounded down, is 0
        ([100, 2, 4, -50], 3),  # the middle two
        ([3, 100, 2, -50, 7], 4),  # the middle three
        ([0, 1, 2, 3, 4, 5, 90, 91], 3.5),  # the middle four of eight: 2, 3, 4, 5
    ]
)
def test_interquartile_mean_by_hand(values, mean):
    found = interquartile_mean(values)
    assert found.value == pytest.approx(mean) and found == interquartile_mean(values)
    assert found.low < found.value < found.high


@pytest.mark.parametrize('values', [[], [1, 2], [1, 2, 3, float('inf')]])
def test_too_few_or_never_reached(values):
    assert interquartile_mean(values) is None and probability_of_improvement([1, 2, 3], values[:2]) is None


@pytest.mark.parametrize(
    'first, other, won',
    [
        # 1 beats 0 of (2, 2, 1) and ties with one; 2 beats one and ties with two; 3 beats all: 0.5 + 2 + 3 of 9
        ([1, 2, 3], [2, 2, 1], 5.5 / 9),
        # a seed that never reached the bar ties with another: 3 pairs won, 2 tied, 4 lost
        ([-5, NEVER, NEVER], [-7, -7, NEVER], 4 / 9),
    ]
)
def test_probability_of_improvement_by_hand(first, other, won):
    assert probability_of_improvement(first, other).value == pytest.approx(won)


def test_probability_of_improvement_of_a_peer():
    """Mann and Whitney's U, divided by the number of pairs, as rliable computes it."""
    first, other = [3, 1, 4, 1, 5, 9], [2, 6, 5, 3]
    found = probability_of_improvement(first, other)
    assert found.value == pytest.approx(mannwhitneyu(first, other).statistic / 24)
    assert 0 <= found.low < found.value < found.high <= 1
    assert probability_of_improvement([4, 5, 6], [1, 2, 3]) == (1, 1, 1)
