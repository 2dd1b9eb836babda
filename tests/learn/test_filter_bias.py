"""What a filter by mean reward does to the expected gradient of a problem, by enumeration of all its groups."""
from itertools import product

import pytest
import torch

from ding_grpo.rl_utils import group_advantage

LOGIT = torch.tensor([0.3, -0.4, 0.9, -1.1], dtype=torch.float64)
G = 3


def expected_gradient(reward, method, low, high):
    """Of the mean over rows of A log p, with respect to the logits, over all groups of G completions."""
    p = LOGIT.softmax(0)
    score = torch.eye(len(p), dtype=torch.float64) - p  # (C, C): gradient of log p of each completion
    total = torch.zeros_like(p)
    for rows in product(range(len(p)), repeat=G):
        rows = torch.tensor(rows)
        if low <= reward[rows].mean() <= high:
            adv = group_advantage(reward[rows], torch.zeros(G).long(), method)
            total += p[rows].prod() * (adv.unsqueeze(1) * score[rows]).mean(0)
    return total


def true_gradient(reward):
    p = LOGIT.softmax(0)
    return p * (reward - (p * reward).sum())


def angle(a, b):
    return torch.rad2deg(torch.arccos((a @ b / a.norm() / b.norm()).clamp(max=1))).item()


@pytest.mark.parametrize('method', ['no_std', 'rloo', 'grpo'])
@pytest.mark.parametrize('low, high', [(0.1, 0.9), (0.1, 0.5), (0.5, 0.9)])
def test_with_two_rewards_the_direction_stays(method, low, high):
    reward = torch.tensor([0., 1., 1., 0.], dtype=torch.float64)
    found = expected_gradient(reward, method, low, high)
    assert found.norm() > 1e-3 and angle(found, true_gradient(reward)) < 1e-4


def test_with_three_rewards_the_direction_changes():
    reward = torch.tensor([0., 1., 0.5, 0.], dtype=torch.float64)
    assert angle(expected_gradient(reward, 'no_std', -1, 2), true_gradient(reward)) < 1e-4
    assert angle(expected_gradient(reward, 'no_std', 0.1, 0.4), true_gradient(reward)) == pytest.approx(30.70, abs=0.01)
