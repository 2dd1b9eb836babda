"""``mask_metrics`` has one default for all losses with DI-engine main's names: padding does not count. Those that are
not here are in ``test_grpo.py`` and ``test_ppo.py``."""
import pytest
import torch

from ding_grpo.rl_utils import ppo_error, ppo_error_continuous, rloo_policy_data, rloo_policy_error

# One row of two tokens of a vocabulary of two. The first has the ratio 1.5 (0.6 / 0.4), the second, padding, 1.
NEW = torch.tensor([[[0.6, 0.4], [0.5, 0.5]]]).double().log()
OLD = torch.tensor([[[0.4, 0.6], [0.5, 0.5]]]).double().log()
ACTION, WEIGHT = torch.tensor([[0, 0]]), torch.tensor([[1., 0.]]).double()
KL = -0.4054651081  # log 0.4 - log 0.6
VALUE, ADV = torch.zeros(1, 2), torch.ones(1, 2)
# mu 0 and 1, sigma 1: the log ratio of the action a is 1/2 - a
MU_NEW, MU_OLD = (dict(mu=torch.full((2, 1), mu), sigma=torch.ones(2, 1)) for mu in (0., 1.))
CONTINUOUS = (MU_NEW, MU_OLD, torch.tensor([[0.5 + KL], [0.5]]))
TWICE = [torch.cat([x, x]) for x in (NEW, OLD, ACTION)]
LOSSES = {
    'rloo': (rloo_policy_error, rloo_policy_data(*TWICE, torch.tensor([1., 0.]), torch.cat([WEIGHT, WEIGHT]))),
    'ppo': (ppo_error, (NEW, OLD, ACTION, VALUE, VALUE, ADV, VALUE, WEIGHT)),
    'ppo_continuous': (ppo_error_continuous, (*CONTINUOUS, VALUE[0], VALUE[0], ADV[0], VALUE[0], WEIGHT[0])),
}


@pytest.mark.parametrize('loss', LOSSES)
def test_padding_counts_only_where_asked(loss):
    error, data = LOSSES[loss]
    assert list(error(data)[1]) == list(error(data, mask_metrics=True)[1]) == pytest.approx([KL, 1])
    # the numbers of DI-engine
    assert list(error(data, mask_metrics=False)[1]) == pytest.approx([KL / 2, 0.5])
