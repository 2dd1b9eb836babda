"""``mask_metrics`` has one default for all losses with DI-engine main's names: padding does not count."""
import inspect

import pytest
import torch

from ding_grpo.rl_utils import (
    grpo_error, grpo_policy_data, grpo_policy_error, ppo_error, ppo_error_continuous, ppo_policy_error,
    ppo_policy_error_continuous, rloo_policy_data, rloo_policy_error
)

# One row of two tokens of a vocabulary of two. The first has the ratio 1.5 (0.6 / 0.4), the second, padding, 1.
NEW = torch.tensor([[[0.6, 0.4], [0.5, 0.5]]]).double().log()
OLD = torch.tensor([[[0.4, 0.6], [0.5, 0.5]]]).double().log()
ACTION, WEIGHT = torch.tensor([[0, 0]]), torch.tensor([[1., 0.]]).double()
KL = -0.4054651081  # log 0.4 - log 0.6


def grpo(**options):
    data = grpo_policy_data(NEW, OLD, None, ACTION, torch.ones(1).double(), WEIGHT)
    return grpo_policy_error(data, beta=0, **options)[1]


def rloo(**options):
    new, old, action, weight = (torch.cat([x, x]) for x in (NEW, OLD, ACTION, WEIGHT))
    return rloo_policy_error(rloo_policy_data(new, old, action, torch.tensor([1., 0.]), weight), **options)[1]


def ppo(**options):
    return ppo_policy_error((NEW, OLD, ACTION, torch.ones(1, 2), WEIGHT), **options)[1]


def ppo_whole(**options):
    value = torch.zeros(1, 2)
    return ppo_error((NEW, OLD, ACTION, value, value, torch.ones(1, 2), value, WEIGHT), **options)[1]


def ppo_continuous(**options):
    # mu 0 and 1, sigma 1: the log ratio of the action a is 1/2 - a
    new, old = (dict(mu=torch.full((2, 1), mu), sigma=torch.ones(2, 1)) for mu in (0., 1.))
    action = torch.tensor([[0.5 + KL], [0.5]])
    return ppo_policy_error_continuous((new, old, action, torch.ones(2), WEIGHT[0]), **options)[1]


@pytest.mark.unittest
class TestMaskMetrics:

    @pytest.mark.parametrize('info', [grpo, rloo, ppo, ppo_whole, ppo_continuous])
    def test_padding_counts_only_where_asked(self, info):
        assert list(info()) == list(info(mask_metrics=True)) == pytest.approx([KL, 1])
        assert list(info(mask_metrics=False)) == pytest.approx([KL / 2, 0.5])  # the numbers of DI-engine

    @pytest.mark.parametrize(
        'error',
        [grpo_error, rloo_policy_error, ppo_error, ppo_policy_error, ppo_error_continuous, ppo_policy_error_continuous]
    )
    def test_one_default(self, error):
        assert inspect.signature(error).parameters['mask_metrics'].default is True
