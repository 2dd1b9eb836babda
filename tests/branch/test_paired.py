"""Differences between groups of two branches, by hand."""
import numpy as np
import pytest

from ding_grpo.branch.group_record import Group
from ding_grpo.branch.paired import difference, line
from ding_grpo.compare.statistics import interquartile_mean, mean, times_fewer


def groups(rewards, problem=0, rows=(1, 2)):
    """Those of updates 5, 6, ... with these rewards."""
    return {(5 + u, g): Group(problem, r, list(rows)) for u, of in enumerate(rewards) for g, r in enumerate(of)}


def test_the_bootstrap_by_hand():
    """The mean of a resample of (0, 0, 3) is 0, 1, 2 or 3 with probability 8, 12, 6 and 1 of 27: the ends are at 2.5 %,
    and 3 has 3.7 %."""
    first, other = groups([[1., 2.], [4.]]), groups([[1., 2.], [7.]])
    counted = difference(first, other, 5, 7)
    assert (counted.pairs, counted.unpaired, counted.equal_rows) == (1, 0, [1, 1])  # the first two are equal
    found = difference(first, other, 4, 7)  # nothing was sampled after update 4
    assert found.mean == (1, 0, 3) == mean([0, 0, 3])
    assert (found.pairs, found.unpaired, found.of_update) == (3, 0, [None] * 3)  # fewer than 3 in an update
    assert mean([1, 2]) is None and mean([2, 2, 2]) == (2, 2, 2) == interquartile_mean([2, 2, 2])


def test_a_planted_difference_is_found_beside_larger_noise():
    """Rewards with a deviation of 1, of which the second branch has 0.05 more, and 0.1 of its own noise."""
    random = np.random.default_rng(0)
    noise = random.normal(size=(20, 16))
    own = random.normal(0.05, 0.1, (20, 16))
    found = difference(groups(noise.tolist()), groups((noise + own).tolist()), 5, 25)
    assert found.mean.value == pytest.approx(own.mean()) and 0.03 < found.mean.low < 0.05 < found.mean.high < 0.07
    assert found.fewer == pytest.approx(200, rel=0.2)  # (1 + 1.01) / 0.01


def test_how_many_fewer_by_hand():
    """Variances within the strata: of 0 and 2 it is 2, of 1 and 2 0.5; the differences are 1 and 0: 0.5. The second
    stratum, (5, 5), (5, 8), has 0, 4.5 and 4.5: (2 + 0.5 + 0 + 4.5) / (0.5 + 4.5). A single pair says nothing."""
    strata = [[(0, 1), (2, 2)], [(5, 5), (5, 8)], [(9, 0)]]
    assert times_fewer(strata) == pytest.approx(7 / 5)
    assert times_fewer([[(1, 1), (2, 2)]]) == float('inf')
    assert times_fewer([[(9, 0)]]) is None and times_fewer([[(1, 2), (1, 2)]]) is None


def test_what_is_no_pair():
    first = groups([[1., 2., None, 4.]])
    other = {key: group._replace(problem=7) if key[1] == 0 else group for key, group in groups([[1., 5., 3.]]).items()}
    found = difference(first, other, 5, 6)
    assert (found.pairs, found.unpaired) == (1, 3)  # another problem, no reward, and no counterpart


def test_where_rows_part():
    first, other = groups([[1.] * 3] * 3), groups([[1.] * 3] * 3)
    for group in range(3):
        other[6, group] = other[6, group]._replace(rows=[1, 9])
        other[7, group] = other[7, group]._replace(rows=[8 if group else 1, 9])
    found = difference(first, other, 5, 8)
    assert found.equal_rows == [1, 0.5, pytest.approx(1 / 6)] and found.parted == 2
    assert line('b', other, 3.25, found) == {
        'setting': 'b',
        'mean reward': '1',
        'difference': '0',
        '95 % interval': '0 to 0',
        'pairs': '6',
        'half of the rows differ after': '2 updates',
        'pairing saves': '',
        'evaluation at the end': '3.25',
    }
