import pytest
import torch

from ding_grpo.rl_utils import masked_mean, sequence_mean

NAN = float('nan')


@pytest.mark.unittest
class TestReduce:

    def test_half_types_are_summed_in_float32(self):
        assert masked_mean(torch.full((1, 70000), 0.5).half(), torch.ones(1, 70000).half()).item() == 0.5

    def test_wrong_shape(self):
        with pytest.raises(ValueError, match=r'\(B, S\)'):
            sequence_mean(torch.zeros(3), torch.zeros(3))

    x = torch.tensor([[1., 2., 9.], [4., 9., 9.]])
    weight = torch.tensor([[1., 1., 0.], [1., 0., 0.]])

    def test_by_hand(self):
        assert masked_mean(self.x, self.weight).item() == pytest.approx((1 + 2 + 4) / 3)
        assert sequence_mean(self.x, self.weight).item() == pytest.approx((1.5 + 4) / 2)

    @pytest.mark.parametrize('reduce', [masked_mean, sequence_mean])
    def test_masked_nan_does_not_count(self, reduce):
        x = torch.where(self.weight == 0, NAN, self.x).requires_grad_()
        value = reduce(x, self.weight)
        value.backward()
        assert value.item() == pytest.approx(reduce(self.x, self.weight).item())
        assert torch.equal(x.grad != 0, self.weight != 0)

    @pytest.mark.parametrize('reduce', [masked_mean, sequence_mean])
    def test_nothing_counts(self, reduce):
        assert reduce(self.x, torch.zeros(2, 3)).item() == 0

    def test_empty_row_counts_as_zero(self):
        weight = torch.tensor([[1., 1., 0.], [0., 0., 0.]])
        assert sequence_mean(self.x, weight).item() == pytest.approx(1.5 / 2)

    def test_fractional_weights(self):
        weight = torch.tensor([[0.5, 0.25, 0.], [0.1, 0., 0.]])
        assert masked_mean(self.x, weight).item() == pytest.approx((0.5 + 0.5 + 0.4) / 0.85)
