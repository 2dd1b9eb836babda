"""
Statistics over seeds, as in https://arxiv.org/abs/2108.13264 (rliable): interquartile mean and probability of
improvement, each with a 95 % percentile bootstrap interval over the seeds. The resampling has a fixed seed, so equal
data give equal intervals.
"""
from functools import partial
from typing import Callable, Iterable, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from scipy.stats import bootstrap, trim_mean

FEWEST = 3  # seeds; fewer say nothing about an interval
RESAMPLES = 9999


class Estimate(NamedTuple):
    """An estimate with its interval."""
    value: float
    low: float
    high: float


def interquartile_mean(values: Sequence[float]) -> Optional[Estimate]:
    """Mean without the smallest and the largest quarter of the values, one per seed, each rounded down: of three values
    all count, of five the middle three. None for fewer than 3 values, or an infinite one."""
    return mean(values, partial(trim_mean, proportiontocut=0.25))


def mean(values: Sequence[float], statistic: Callable = np.mean) -> Optional[Estimate]:
    """Mean of values, such as differences of pairs, or another statistic. None for fewer than 3, or an infinite one."""
    if len(values) < FEWEST or not np.isfinite(values).all():
        return None
    return _with_interval((values, ), statistic)


def times_fewer(strata: Iterable[Sequence[Tuple[float, float]]]) -> Optional[float]:
    """How many times more pairs would be needed if they were no pairs: the variance of the difference of two
    independent values, divided by that of a pair, both within strata, whose pairs have one distribution, as those of an
    update. Strata with one pair say nothing. Infinite if all differences are equal, None if no values differ."""
    apart = paired = 0.
    for pairs in (np.asarray(pairs, dtype=float) for pairs in strata if len(pairs) > 1):
        apart += len(pairs) * pairs.var(axis=0, ddof=1).sum()
        paired += len(pairs) * (pairs[:, 1] - pairs[:, 0]).var(ddof=1)
    if apart == 0:
        return None
    return apart / paired if paired > 0 else float('inf')


def probability_of_improvement(first: Sequence[float], other: Sequence[float]) -> Optional[Estimate]:
    """Share of all pairs, one value of each side, in which the first is larger; ties count half. Each side has one
    value per seed, of any number of seeds; infinite ones are allowed. None if one side has fewer than 3."""
    if min(len(first), len(other)) < FEWEST:
        return None

    def statistic(x: np.ndarray, y: np.ndarray, axis: int = -1) -> np.ndarray:
        x, y = np.expand_dims(np.moveaxis(x, axis, -1), -1), np.expand_dims(np.moveaxis(y, axis, -1), -2)
        return ((x > y) + 0.5 * (x == y)).mean((-2, -1))

    return _with_interval((first, other), statistic)


def _with_interval(samples: Sequence[Sequence[float]], statistic: Callable) -> Estimate:
    samples = [np.asarray(s, dtype=float) for s in samples]
    found = bootstrap(
        samples, statistic, n_resamples=RESAMPLES, batch=1000, vectorized=True, method='percentile', random_state=0
    )
    low, high = found.confidence_interval
    return Estimate(float(statistic(*samples)), float(low), float(high))
