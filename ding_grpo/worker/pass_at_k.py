from typing import NamedTuple

import numpy as np


class Estimate(NamedTuple):
    """
    Overview:
        A mean over problems with its 95 % confidence interval.
    """
    mean: float
    low: float
    high: float


def pass_at_k(right: np.ndarray, samples: int, k: int) -> np.ndarray:
    """
    Overview:
        Probability that at least one of k samples is right, estimated without bias from ``samples`` >= k samples of \
        which some are right: 1 - C(n - c, k) / C(n, k), equation 1 of https://arxiv.org/abs/2107.03374, as a product \
        that does not overflow.
    Arguments:
        - right (:obj:`np.ndarray`): How many samples of each problem are right.
        - samples (:obj:`int`): How many samples each problem has.
        - k (:obj:`int`): Samples that are drawn.
    Returns:
        - probability (:obj:`np.ndarray`): One a problem.
    Shapes:
        - right (:obj:`np.ndarray`): :math:`(P, )`
        - probability (:obj:`np.ndarray`): :math:`(P, )`
    Raises:
        - ValueError: If k is not in 1 to ``samples``, or a count not in 0 to ``samples``.
    """
    right = np.asarray(right)
    if not 1 <= k <= samples:
        raise ValueError(f'k = {k}: must be from 1 to samples = {samples}')
    if right.size and not 0 <= right.min() <= right.max() <= samples:
        raise ValueError(f'right from {right.min()} to {right.max()}: must be from 0 to samples = {samples}')
    wrong = samples - right
    # all k wrong: (wrong / n) (wrong - 1) / (n - 1) ...; at 0 or less there are not so many wrong ones
    factors = (wrong[:, None] - np.arange(k)) / (samples - np.arange(k))  # (P, k)
    return 1 - np.clip(factors, 0, None).prod(axis=1)


def over_problems(values: np.ndarray) -> Estimate:
    """
    Overview:
        Mean over problems with Wilson's interval of a share, https://doi.org/10.1080/01621459.1927.10502953: as if \
        each problem were either right or wrong, than which no probabilities of the same mean scatter more. It does \
        not shrink to a point when all problems are right; near 0 and 1 and of few problems it covers less than 95 %.
    Arguments:
        - values (:obj:`np.ndarray`): A probability of each problem.
    Shapes:
        - values (:obj:`np.ndarray`): :math:`(P, )`
    """
    mean, weight = float(values.mean()), 1.96 ** 2 / len(values)
    middle = (mean + weight / 2) / (1 + weight)
    half = (mean * (1 - mean) * weight + weight ** 2 / 4) ** 0.5 / (1 + weight)
    return Estimate(mean, max(middle - half, 0.), min(middle + half, 1.))
