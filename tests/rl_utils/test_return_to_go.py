import pytest
import torch

from ding_grpo.rl_utils import return_to_go


@pytest.mark.unittest
class TestReturnToGo:

    def test_by_hand(self):
        reward = torch.tensor([[1., 2., 4.], [1., 0., 0.]])
        assert return_to_go(reward, 0.5).tolist() == [[3, 4, 4], [1, 0, 0]]
        assert return_to_go(reward, 1.0)[:, 0].tolist() == [7, 1]
        assert torch.equal(return_to_go(reward, 0.0), reward)

    def test_no_step(self):
        assert return_to_go(torch.zeros(2, 0), 0.9).shape == (2, 0)

    @pytest.mark.parametrize(
        'reward, discount, message', [
            (torch.zeros(2, 3), 1.1, 'discount_factor = 1.1'),
            (torch.zeros(2), 0.9, r'reward \(2,\)'),
            (torch.zeros(2, 3).long(), 0.9, 'reward.*int64'),
        ]
    )
    def test_wrong_use(self, reward, discount, message):
        with pytest.raises(ValueError, match=message):
            return_to_go(reward, discount)
