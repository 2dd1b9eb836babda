"""Figures of batches, against numbers worked out by hand."""
import math

import pytest
import torch
from torch import nn

from ding_grpo.instruments.evidence import checksum, of_change, of_mask, of_samples
from tests.policies import make_batch

CONTINUOUS = torch.zeros(4, 3, 2)
CONTINUOUS[3, 2, 1] = 0.5


def two_groups(**fields):
    """Groups of two rows; rewards 1, 1 and 0, 2; the rows of group 0 are copies."""
    weight = torch.tensor([[1., 1, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]])
    action = torch.tensor([[5, 6, 0], [5, 6, 9], [5, 6, 7], [5, 6, 8]])  # 9 is after the end of its row
    reward = torch.tensor([[0., 1, 0], [0, 1, 0], [0, 0, 0], [0, 0, 2]])
    group = torch.tensor([0, 0, 1, 1])
    return make_batch(weight, **dict(dict(action=action, reward=reward, group=group), **fields))


class TestOfSamples:

    @pytest.mark.parametrize(
        'fields, expected',
        [
            (
                dict(truncated=torch.tensor([False, False, True, False])
                     ), dict(rows=4, cut=1, groups=2, equal=1, copies=1, low=0, high=2, mean=1, std=math.sqrt(0.5))
            ),
            # copies of the best row are a solution
            (dict(reward=torch.tensor([[0., 9, 0], [0, 9, 0], [0, 0, 0], [0, 0, 2]])), dict(copies=0, identical=1)),
            (dict(reward=torch.zeros(4, 3)), dict(copies=1)),  # all rewards are equal
            # group 1 has one row left, which is compared with none
            (dict(failed=torch.tensor([False, False, False, True])), dict(rows=3, groups=1, equal=1, high=1)),
            (dict(action=CONTINUOUS), dict(copies=1)),
        ]
    )
    def test_counts(self, fields, expected):
        found = of_samples(two_groups(**fields))
        assert {name: found[name] for name in expected} == pytest.approx(expected)

    def test_without_rows_there_are_none(self):
        assert of_samples(two_groups(failed=torch.ones(4, dtype=torch.bool))) == {}

    def test_parts_are_weighted_and_skip_rows_without_them(self):
        part = torch.tensor([1., float('nan'), 3, 2])
        found = of_samples(two_groups(reward_parts=dict(a=part, b=torch.full((4, ), float('nan')))), dict(a=0.5, b=1))
        assert found['parts'] == dict(a=[0.5, 1.5, 1.0])

    def test_rows_of_other_lengths_are_no_copies(self):
        weight = torch.tensor([[1., 0], [1, 1]])
        assert of_samples(make_batch(weight, action=torch.zeros(2, 2).long()))['copies'] == 0


def test_of_mask():
    batch = two_groups()
    assert of_mask(batch) == dict(outside=0, inside=10, steps=10)
    batch.weight = 1 - batch.weight  # inverted
    assert of_mask(batch) == dict(outside=2, inside=0, steps=10)


@pytest.mark.parametrize(
    'adv, after, fresh, expected',
    [
        # changes +0.1, +0.3, -0.2; ln 1.2 = 0.182: two of three leave the range, and all three are as asked for.
        # -log p - entropy: -0.5, 0.5, 1.5
        (
            [1., -1.], [[-0.9, -1.7], [-3.2, 0.]], [True, True],
            dict(steps=3, moved=0.2, outside=2 / 3, follow=1, fresh=3, surprise=1.5, squares=2.75)
        ),
        # a part against the advantage: 1 x 0.1 + 1 x (-0.3) + (-1) x (-0.2) = 0 of 0.6
        ([[1., 1.], [-1., 7.]], [[-0.9, -2.3], [-3.2, 0.]], [True, True], dict(follow=0)),
        ([0., 0.], [[-0.9, -1.7], [-3.2, 0.]], [True, True], dict(follow=None)),  # no advantage to follow
        # rows of older weights are no surprise
        ([1., -1.], [[-0.9, -1.7], [-3.2, 0.]], [True, False], dict(fresh=2, surprise=0, squares=0.5)),
    ]
)
def test_of_change_by_hand(adv, after, fresh, expected):
    weight, before = torch.tensor([[1., 1], [1, 0]]), torch.tensor([[-1., -2], [-3, -99]])
    batch = make_batch(weight, adv=torch.tensor(adv))
    found = of_change(batch, before, torch.full((2, 2), 1.5), torch.tensor(fresh).unsqueeze(1), torch.tensor(after))
    assert {name: found.get(name) for name in expected} == pytest.approx(expected, abs=1e-6)


class TestChecksum:

    @pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16, torch.float64])
    def test_one_bit(self, dtype):
        model = nn.Linear(3, 2, dtype=dtype)
        before = checksum(model, trained=True)
        assert before == checksum(model, trained=True)
        with torch.no_grad():
            model.weight[1, 2] = torch.nextafter(model.weight[1, 2], torch.tensor(9., dtype=dtype))
        assert checksum(model, trained=True) != before

    def test_two_weights_that_change_places(self):
        model, found = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)), []
        for values in ((1, 2), (2, 1)):
            for layer, value in zip(model, values):
                layer.weight.data.fill_(value)
            found.append(checksum(model, trained=True))
        assert found[0] != found[1]

    def test_adapters_may_change(self):
        model = nn.Linear(3, 2)
        model.weight.requires_grad_(False)
        before = checksum(model, trained=False)
        model.bias.data += 1
        assert checksum(model, trained=False) == before
        model.weight.data += 1
        assert checksum(model, trained=False) != before
