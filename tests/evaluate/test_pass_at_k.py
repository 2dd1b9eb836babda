import itertools

import numpy as np
import pytest

from ding_grpo.evaluate.pass_at_k import interval_of_mean, over_problems, pass_at_k


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

    @pytest.mark.parametrize(
        'shares, interval', [
            (np.array([0., 1.] * 50), (0.5, 0.40383, 0.59617)),
            (np.ones(4), (1, 0.51011, 1)),
            (np.zeros(4), (0, 0, 0.48989)),
        ]
    )
    def test_interval_of_shares(self, shares, interval):
        """Wilson's, as in the tables of statistics."""
        assert over_problems(shares) == pytest.approx(interval, abs=1e-4)

    def test_interval_holds_the_mean_as_often_as_it_says(self):
        generator, inside = np.random.default_rng(0), 0
        for _ in range(1000):
            values = pass_at_k(generator.binomial(4, generator.beta(1, 3, size=30)), 4, 1)
            low, high = over_problems(values)[1:]
            inside += low <= 0.25 <= high  # the mean of Beta(1, 3)
        assert inside >= 950

    @pytest.mark.parametrize(
        'returns, interval', [
            ([1., 1, 1, 1], [0.51011, 1]),
            ([0.5, 0.5], None),
            ([0., 1, 2] * 50, [0.87, 1.13]),
        ]
    )
    def test_interval_of_returns(self, returns, interval):
        found = interval_of_mean(np.array(returns))
        assert found == (interval and pytest.approx(interval, abs=1e-2))
