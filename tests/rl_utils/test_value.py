import math

import pytest
import torch
from ding.rl_utils import gae, gae_data, ppo_value_data

from ding_grpo.rl_utils import explained_variance, gae_advantage, ppo_value_error, value_error

NAN = float('nan')


def ragged(seed=0, rows=5, steps=7):
    """reward, value, weight (B, S) of rows of different lengths; NaN after a row's end."""
    generator = torch.Generator().manual_seed(seed)
    reward, value = (torch.randn(rows, steps, generator=generator, dtype=torch.float64) for _ in range(2))
    length = torch.randint(1, steps + 1, (rows, ), generator=generator)
    length[0] = steps
    weight = (torch.arange(steps) < length[:, None]).double()
    return reward.masked_fill(weight == 0, NAN), value.masked_fill(weight == 0, NAN), weight


class TestGAE:

    def test_by_hand(self):
        # discount 0.5, lambda 0.5: products of 0.25
        # row 0 ends: d = [1 + 0.5 * 2 - 1, 0 + 0.5 * 4 - 2, 3 - 4] = [1, 0, -1]; A = [1 - 0.25 * 0.25, -0.25, -1]
        # row 1 is cut after 2 steps, and the value then is 8: d = [0 + 0.5 * 1 - 0, 1 + 0.5 * 8 - 1] = [0.5, 4]
        # A = [0.5 + 0.25 * 4, 4]
        adv, return_ = gae_advantage(
            reward=torch.tensor([[1., 0, 3], [0, 1, 9]]),
            value=torch.tensor([[1., 2, 4], [0, 1, 9]]),
            weight=torch.tensor([[1., 1, 1], [1, 1, 0]]),
            discount_factor=0.5,
            gae_lambda=0.5,
            final_value=torch.tensor([0., 8])
        )
        assert adv.tolist() == [[0.9375, -0.25, -1], [1.5, 4, 0]]
        assert return_.tolist() == [[1.9375, 1.75, 3], [1.5, 5, 0]]

    # DI-engine rounds the product of both factors to float32: to 1e-9 the two agree if it is a float32.
    @pytest.mark.parametrize(
        'discount_factor, gae_lambda, atol', [(0.75, 0.875, 1e-9), (1., 1., 1e-9), (0.9, 0., 1e-9), (0.99, 0.95, 1e-6)]
    )
    def test_is_that_of_ding(self, discount_factor, gae_lambda, atol):
        reward, value, weight = ragged()
        cut, following = torch.tensor([True, False, True, False, False]), torch.randn(5, dtype=torch.float64)
        adv, return_ = gae_advantage(reward, value, weight, discount_factor, gae_lambda, following * cut)
        for row in range(5):
            n = int(weight[row].sum())
            done, ends = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
            done[-1], ends[-1] = float(not cut[row]), 1
            next_value = torch.cat([value[row, 1:n], following[row:row + 1]])
            data = gae_data(value[row, :n], next_value, reward[row, :n], done, ends)
            expected = gae(data, discount_factor, gae_lambda)
            assert torch.allclose(adv[row, :n], expected, rtol=0, atol=atol)
            assert torch.allclose(return_[row, :n], expected + value[row, :n], rtol=0, atol=atol)
            assert not adv[row, n:].any() and not return_[row, n:].any()

    @pytest.mark.parametrize('steps', [3, 0])
    def test_rows_without_steps(self, steps):
        adv, return_ = gae_advantage(*[torch.zeros(2, steps)] * 3, final_value=torch.ones(2))
        assert adv.shape == (2, steps) and not adv.any() and not return_.any()


def value_case(seed=0, shape=(4, 6)):
    generator = torch.Generator().manual_seed(seed)
    new, old, target = (torch.randn(*shape, generator=generator, dtype=torch.float64) for _ in range(3))
    weight = (torch.rand(*shape, generator=generator) < 0.7).double()
    return ppo_value_data(new.requires_grad_(), old, target, weight)


class TestValueError:

    @pytest.mark.parametrize('clip', [None, 0.2, 1.])
    def test_is_that_of_ppo(self, clip):
        data = value_case()
        loss, _ = value_error(data, value_clip=clip)
        expected = ppo_value_error(data, clip or 0.2, use_value_clip=clip is not None, mask_loss=True)
        assert torch.allclose(loss, expected, rtol=0, atol=1e-12)
        gradient, of_ppo = (torch.autograd.grad(x, data.value_new)[0] for x in (loss, expected))
        assert torch.allclose(gradient, of_ppo, rtol=0, atol=1e-12)

    def test_clipfrac_by_hand(self):
        # old 0, target 0: the error of 1 is larger than that of the clipped 0.5, so that nothing is clipped; with a
        # target of 2, the clipped value 0.5 is further away; the last one does not count
        target, weight = torch.tensor([[0., 2, 0, 2]]), torch.tensor([[1., 1, 1, 0]])
        loss, info = value_error(ppo_value_data(torch.ones(1, 4), torch.zeros(1, 4), target, weight), value_clip=0.5)
        assert info.value_clipfrac == pytest.approx(1 / 3) and loss.item() == pytest.approx((1 + 1.5 ** 2 + 1) / 6)

    def test_parts_sum_to_the_whole(self):
        data = value_case(1)
        parts = [ppo_value_data(*(x[rows] for x in data)) for rows in (slice(1), slice(1, 4))]
        losses = [value_error(part, num_tokens=data.weight.sum().item())[0] for part in parts]
        assert torch.allclose(sum(losses), value_error(data)[0], rtol=0, atol=1e-12)

    def test_padding_reaches_nothing(self):
        data = value_case(2)
        new, target = (x.detach().masked_fill(data.weight == 0, NAN) for x in (data.value_new, data.return_))
        loss = value_error(data._replace(value_new=new.requires_grad_(), return_=target), value_clip=0.2)[0]
        loss.backward()
        assert loss == value_error(data, value_clip=0.2)[0] and new.grad.isfinite().all()


def test_explained_variance_by_hand():
    target, weight = torch.tensor([[1., 3, 99]]), torch.tensor([[1., 1, 0]])
    assert explained_variance(target, target, weight) == 1
    assert explained_variance(torch.full((1, 3), 5.), target, weight) == 0
    assert explained_variance(torch.tensor([[3., 1, 0]]), target, weight) == 1 - 4  # errors -2 and 2
    ones = torch.ones(2, 3)
    for nothing in (ones, torch.zeros(2, 3)):  # equal returns have none
        assert math.isnan(explained_variance(ones, ones, nothing))
