import itertools

import numpy as np
import pytest

from ding_grpo.worker.pass_at_k import over_problems, pass_at_k


@pytest.mark.unittest
class TestPassAtK:

    @pytest.mark.parametrize('samples', [1, 2, 5])
    def test_equals_exhaustive_enumeration(self, samples):
        for right, k in itertools.product(range(samples + 1), range(1, samples + 1)):
            drawn = list(itertools.combinations([True] * right + [False] * (samples - right), k))
            share = sum(any(d) for d in drawn) / len(drawn)
            assert pass_at_k(np.array([right]), samples, k)[0] == pytest.approx(share), (right, k)

    def test_many_samples_do_not_overflow(self):
        assert pass_at_k(np.array([1, 0, 10000]), 10000, 5000).tolist() == pytest.approx([0.5, 0, 1])

    @pytest.mark.parametrize('right, samples, k', [([1], 2, 3), ([1], 2, 0), ([3], 2, 1), ([-1], 2, 1)])
    def test_wrong_use(self, right, samples, k):
        with pytest.raises(ValueError, match='must be from'):
            pass_at_k(np.array(right), samples, k)

    def test_interval(self):
        # 0 and 1 half the time: mean 1/2, unbiased standard deviation sqrt(100 / 4 / 99)
        estimate = over_problems(np.array([0., 1.] * 50))
        half = 1.96 * (25 / 99) ** 0.5 / 10
        assert estimate == pytest.approx((0.5, 0.5 - half, 0.5 + half))
        assert over_problems(np.ones(4)) == (1, 1, 1) and over_problems(np.array([0.3])) == (0.3, 0, 1)
