from typing import List, NamedTuple, Optional

import numpy as np


class Estimate(NamedTuple):
    """A mean over problems with its 95 % confidence interval."""
    mean: float
    low: float
    high: float


def pass_at_k(right: np.ndarray, samples: int, k: int) -> np.ndarray:
    """Unbiased estimate, for each of P problems, of the probability that at least one of k samples is correct. It needs
    n = ``samples`` >= k samples, of which c = ``right`` (P, ) are correct: 1 - C(n - c, k) / C(n, k), equation 1 of
    https://arxiv.org/abs/2107.03374. It is computed as a product that does not overflow."""
    right = np.asarray(right)
    if not 1 <= k <= samples:
        raise ValueError(f'k = {k}: must be from 1 to samples = {samples}')
    if right.size and not 0 <= right.min() <= right.max() <= samples:
        raise ValueError(f'right from {right.min()} to {right.max()}: must be from 0 to samples = {samples}')
    wrong = samples - right
    # all k wrong: (wrong / n) (wrong - 1) / (n - 1) ...; a factor of 0 or less means that fewer than k are wrong
    factors = (wrong[:, None] - np.arange(k)) / (samples - np.arange(k))  # (P, k)
    return 1 - np.clip(factors, 0, None).prod(axis=1)


def over_problems(values: np.ndarray) -> Estimate:
    """Mean over problems with Wilson's interval of a share, https://doi.org/10.1080/01621459.1927.10502953. It treats
    each problem as either right or wrong; among probabilities of the same mean, these vary most. The interval does not
    shrink to a point when all problems are right. Near 0 and 1, and for few problems, it covers less than 95 %."""
    mean, weight = float(values.mean()), 1.96 ** 2 / len(values)
    middle = (mean + weight / 2) / (1 + weight)
    half = (mean * (1 - mean) * weight + weight ** 2 / 4) ** 0.5 / (1 + weight)
    return Estimate(mean, max(middle - half, 0.), min(middle + half, 1.))


def interval_of_mean(returns: np.ndarray) -> Optional[List[float]]:
    """95 % interval of the mean of some returns, one an episode: Wilson's if each is 0 or 1, else by bootstrap; None if
    all are equal, of which nothing is known."""
    from scipy.stats import bootstrap
    if np.isin(returns, (0.0, 1.0)).all():
        _, low, high = over_problems(returns)
    elif len(set(returns)) == 1:
        return None
    else:
        low, high = bootstrap((returns, ), np.mean, random_state=0).confidence_interval
    return [round(float(low), 6), round(float(high), 6)]
