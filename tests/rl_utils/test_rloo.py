"""Beside the comparison with DI-engine main in ``test_grpo.py``."""
import pytest
import torch

from ding_grpo.rl_utils import rloo_policy_data, rloo_policy_error


@pytest.mark.unittest
@pytest.mark.usefixtures('on_device')
@pytest.mark.parametrize('reward', [[3., 0., 0.], [3, 0, 0], [[3.], [0.], [0.]]], ids=str)
def test_completions_of_one_prompt_by_hand(reward):
    # rewards 3, 0, 0: minus the mean of the others 3, -1.5, -1.5; ratio 1
    logit, action = torch.zeros(3, 2, 4, dtype=torch.float64, requires_grad=True), torch.zeros(3, 2).long()
    data = rloo_policy_data(logit, logit.detach(), action, torch.tensor(reward), None)
    loss, _ = rloo_policy_error(data)
    grad, = torch.autograd.grad(loss, logit)
    # of the loss: -adv / 3 rows / 2 tokens x (1 - 1/4)
    assert loss.item() == pytest.approx(0)
    assert grad[:, 0, 0].tolist() == pytest.approx([-3 / 8, 1.5 / 8, 1.5 / 8])
