import pytest
import torch

from ding_grpo.rl_utils import masked_mean, sequence_mean

X = torch.tensor([[1., 2., 9.], [4., 9., 9.]])
WEIGHT = torch.tensor([[1., 1., 0.], [1., 0., 0.]])


@pytest.mark.parametrize(
    'reduce, weight, expected',
    [
        (masked_mean, WEIGHT, (1 + 2 + 4) / 3),
        (sequence_mean, WEIGHT, (1.5 + 4) / 2),
        (sequence_mean, torch.tensor([[1., 1., 0.], [0., 0., 0.]]), 1.5 / 2),  # an empty row counts as zero
        (masked_mean, torch.tensor([[0.5, 0.25, 0.], [0.1, 0., 0.]]), (0.5 + 0.5 + 0.4) / 0.85),
        (masked_mean, torch.zeros(2, 3), 0),
        (sequence_mean, torch.zeros(2, 3), 0),
    ]
)
def test_by_hand_where_masked_nan_does_not_count(reduce, weight, expected):
    x = torch.where(weight == 0, float('nan'), X).requires_grad_()
    value = reduce(x, weight)
    value.backward()
    assert value.item() == pytest.approx(expected) and torch.equal(x.grad != 0, weight != 0)


def test_half_types_are_summed_in_float32():
    assert masked_mean(torch.full((1, 70000), 0.5).half(), torch.ones(1, 70000).half()).item() == 0.5
