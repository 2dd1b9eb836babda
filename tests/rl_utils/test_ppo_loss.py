import pytest
import torch

from ding_grpo.rl_utils import PPOLoss
from tests.rl_utils.peers import assert_gradient, double, recorded

TORCHTUNE = recorded('torchtune_ppo')
NAMES = ('pi_old_logprobs', 'pi_logprobs', 'advantages', 'phi_old_values', 'phi_values', 'returns')
MASKS = ('padding_masks', 'value_padding_masks')


def inputs():
    data = {name: double(TORCHTUNE['inputs'][name]) for name in NAMES}
    for name in ('pi_logprobs', 'phi_values'):
        data[name].requires_grad_()
    return data, {name: torch.tensor(TORCHTUNE['inputs'][name]) for name in MASKS}


@pytest.mark.parametrize('case', TORCHTUNE['cases'], ids=range(len(TORCHTUNE['cases'])))
def test_equals_torchtune(case):
    data, masks = inputs()
    outputs = PPOLoss(**case['kwargs'])(**data, **masks if case['use_masks'] else {})
    outputs[0].backward()
    for name, value in zip(('loss', 'policy_loss', 'value_loss', 'ratios', 'clipfrac'), outputs):
        assert value.item() == pytest.approx(case[name], abs=1e-9 if 'loss' in name else 1e-6), name
    for name in ('pi_logprobs', 'phi_values'):
        assert_gradient(data[name], case[f'grad_{name}'])
    assert not any(x.requires_grad for x in outputs[1:])


def test_padding_reaches_no_gradient_and_nothing_is_defined():
    data, masks = inputs()
    expected = torch.autograd.grad(PPOLoss()(**data, **masks)[0], data['pi_logprobs'])[0]
    data['pi_old_logprobs'][~masks['padding_masks']] = float('-inf')
    assert torch.equal(torch.autograd.grad(PPOLoss()(**data, **masks)[0], data['pi_logprobs'])[0], expected)
    assert all(x == 0 for x in PPOLoss()(*(torch.zeros(0, 4) for _ in range(6))))


def test_half_types_are_computed_in_float32():
    new, old, adv = torch.tensor([[0.]]).half(), torch.tensor([[-5.]]).half(), torch.tensor([[-1.]]).half()
    assert PPOLoss()(old, new, adv, new, new, new)[1].item() == pytest.approx(2.718281828 ** 5, rel=1e-3)


@pytest.mark.parametrize('name', NAMES + MASKS)
def test_broadcasting_equals_repetition(name):
    """Also of inputs of one dimension or none."""
    data, masks = inputs()
    data = {key: x.detach() for key, x in data.items()} | masks
    for part in (data[name][:1], data[name][0], data[name][:, :1], data[name][0, 0]):
        expected = PPOLoss()(**{**data, name: part.expand(data[name].shape)})
        found = PPOLoss()(**{**data, name: part})
        assert [x.item() for x in found] == pytest.approx([x.item() for x in expected], abs=1e-12)


def test_one_advantage_a_row_that_is_an_integer():
    old, adv, value = torch.zeros(2, 3), torch.tensor([[3], [-1]]), torch.zeros(2, 4)
    assert PPOLoss()(old, old, adv, value, value, value)[1].item() == pytest.approx(-1)  # -(3 - 1) / 2
