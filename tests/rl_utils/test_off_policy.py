"""Importance weights of rows that another policy sampled, against numbers by hand."""
import math

import pytest
import torch

from ding_grpo.rl_utils import divergent_rows, far_rows, sampler_correction

# Ratios of tokens by row: 2, 1/2, 4 (product 4) and 1/2, 1/4 (product 1/8); what does not count may be anything.
SAMPLER = torch.tensor([[-1., -2., -3.], [-1., -1., float('nan')]])
LOGP = SAMPLER + torch.tensor([[2., 0.5, 4.], [0.5, 0.25, 1.]]).log()
WEIGHT = torch.tensor([[1., 1., 1.], [1., 1., 0.]])


@pytest.mark.parametrize(
    'level, band, expected, cut', [
        ('token', (3.0, ), [[2., 0.5, 3.], [0.5, 0.25, 1.]], 1 / 5),
        ('token', (1.0, ), [[1., 0.5, 1.], [0.5, 0.25, 1.]], 2 / 5),
        ('sequence', (3.0, ), [[3., 3., 3.], [0.125, 0.125, 1.]], 3 / 5),
        ('sequence', (5.0, ), [[4., 4., 4.], [0.125, 0.125, 1.]], 0.),
        ('token', (3.0, 0.4, 'truncate'), [[2., 0.5, 3.], [0.5, 0.4, 1.]], 2 / 5),
        ('token', (3.0, 0.4, 'mask'), [[2., 0.5, 0.], [0.5, 0., 1.]], 2 / 5),
        ('sequence', (3.0, 0.4, 'truncate'), [[3., 3., 3.], [0.4, 0.4, 1.]], 1.),
        ('sequence', (3.0, 0.4, 'mask'), [[0., 0., 0.], [0., 0., 1.]], 1.),
    ]
)
def test_correction_by_hand(level, band, expected, cut):
    factor, found = sampler_correction(LOGP, SAMPLER, WEIGHT, level, *band)
    assert torch.allclose(factor, torch.tensor(expected)) and found == pytest.approx(cut)


def test_a_ratio_at_the_border_of_a_band_counts():
    row = torch.tensor([[0.5, 4.0, 1.0]], dtype=torch.double)
    factor, cut = sampler_correction(row.log(), torch.zeros_like(row), torch.ones_like(row), 'token', 4.1, 0.49, 'mask')
    assert torch.allclose(factor, row) and cut == 0


def test_no_overflow():
    factor, cut = sampler_correction(torch.zeros(1, 9), torch.full((1, 9), -90.), torch.ones(1, 9), 'sequence', 2.)
    assert factor.tolist() == [[2.] * 9] and cut == 1


def test_far_rows():
    # means of logp_sampler - logp: -log(4) / 3 and log(8) / 2
    mean = math.log(8) / 2
    assert far_rows(LOGP, SAMPLER, WEIGHT, mean - 1e-4).tolist() == [False, True]
    assert far_rows(LOGP, SAMPLER, WEIGHT, mean + 1e-4).tolist() == [False, False]
    assert far_rows(LOGP, SAMPLER, torch.zeros_like(WEIGHT), 0.).tolist() == [False, False]


def test_divergent_rows():
    """Ratios 2, 1/2, 4 and 1/2, 1/4: r - 1 - log r of each token, its half square of the logarithm, and -log r."""
    log2 = math.log(2)
    means = dict(
        k1=[-2 * log2 / 3, 3 * log2 / 2],
        k2=[(1 + 1 + 4) * log2 ** 2 / 6, (1 + 4) * log2 ** 2 / 4],
        k3=[(3.5 - 2 * log2) / 3, (-1.25 + 3 * log2) / 2],
    )
    for kl_type, expected in means.items():
        for row, mean in enumerate(expected):
            for most, is_more in ((abs(mean) - 1e-4, True), (abs(mean) + 1e-4, False)):
                assert divergent_rows(LOGP, SAMPLER, WEIGHT, most, kl_type)[row].item() == is_more
    assert not divergent_rows(LOGP, SAMPLER, torch.zeros_like(WEIGHT), 0.1).any()
