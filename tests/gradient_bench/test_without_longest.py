"""What it does to the expected gradient that the longest rows of a group are dropped, by enumeration."""
import math
from collections import Counter
from itertools import product

import pytest
import torch

from ding_grpo.gradient_bench.batches import Batches
from ding_grpo.gradient_bench.estimate import Bench
from ding_grpo.rollout import EarlyStop
from tests.gradient_bench.worlds import make


def probabilities(batches):
    """Probability of each kept group, without regard to the order of its rows."""
    found = Counter()
    for row, p in zip(batches.row.tolist(), batches.probability.tolist()):
        found[tuple(sorted(row))] += p
    return found


def test_by_hand():
    """Completions of 1, 2 and 2 tokens; two of three rows are kept, so row 0 is in unless all three are longer."""
    world, logits = make(2, 2, 1)
    assert world.weight.sum(1).tolist() == [1, 2, 2]
    a, b, c = world.log_prob_of_rows(logits).exp().tolist()
    found = probabilities(Batches.all(world, logits, 3).without_longest(world, 1))
    expected = {
        (0, 0): a ** 3 + 3 * a ** 2 * (b + c),
        # one short row, and either of the other two
        (0, 1): 3 * a * (b ** 2 + b * c),
        (0, 2): 3 * a * (c ** 2 + b * c),
        # no short row: three rows of one length, of which each is dropped equally likely
        (1, 1): b ** 3 + 3 * b ** 2 * c / 3,
        (1, 2): (3 * b ** 2 * c + 3 * b * c ** 2) * 2 / 3,
        (2, 2): c ** 3 + 3 * b * c ** 2 / 3,
    }
    assert found == pytest.approx(expected, abs=1e-14) and sum(found.values()) == pytest.approx(1, abs=1e-14)


def test_is_the_rule_by_which_rows_are_sampled():
    """Against all ordered groups, of which ``EarlyStop`` chooses the rows that count."""
    world, logits = make(3, 2, 1)
    p, length = world.log_prob_of_rows(logits).exp(), world.weight.sum(1).long()
    expected = Counter()
    for rows in product(range(len(p)), repeat=4):
        counted = EarlyStop([(0, i) for i in range(4)], 2, torch.device('cpu')).counted(length[list(rows)])
        expected[tuple(sorted(row for row, counts in zip(rows, counted) if counts))] += p[list(rows)].prod().item()
    found = probabilities(Batches.all(world, logits, 4).without_longest(world, 2))
    assert found == pytest.approx(dict(expected), abs=1e-13)


def test_a_sample_drops_as_the_enumeration():
    world, logits = make(2, 2, 1)
    sampled = Batches.sample(world, logits, 3, 40_000, torch.Generator().manual_seed(0))
    found, expected = (
        probabilities(batches.without_longest(world, 1)) for batches in (sampled, Batches.all(world, logits, 3))
    )
    for group, p in expected.items():
        assert found[group] == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / 40_000))


def test_the_gradient_is_biased_and_more_so_with_more_rows():
    lines = [next(Bench(['dr_grpo'], ['rloo'], [2], [0.], length=2, extra_rows=n).run(0)) for n in range(4)]
    bias = [line['bias'] for line in lines]
    assert bias[0] < 1e-10 and 0.1 < bias[1] < bias[2] < bias[3]
