"""The noise scale against numbers worked out by hand, and against the gradient of each group alone."""
import types

import pytest
import torch

from ding_grpo.instruments.noise_scale import noise_of_table, noise_scale
from tests.cases import long
from tests.policies import (
    CONTINUOUS, DISCRETE, gradient, make_batch, reward, same_reward, sample_groups, sample_steps, step_policy,
    token_policy, update, weights
)


def parts(metrics, kind):
    return {name.split('/')[2]: value for name, value in metrics.items() if name.startswith(f'noise/{kind}/')}


class TestByHand:

    @pytest.mark.parametrize(
        'groups, squares, square, expected',
        [
            # Gradients (3, 0), (1, 2), (2, 1): their mean is (2, 1), the variance ((1 + 1) + (1 + 1) + 0) / 2 = 2, the
            # signal 5 - 2 / 3. The parts of the batch's gradient are a third of them.
            (3, (9 + 5 + 5) / 9, 5., dict(variance=2, signal=13 / 3, scale=6 / 13)),
            # (1, 0) and (-1, 0) cancel: mean 0, variance 2, so the signal is -1, and a ratio would be negative.
            (2, 2 / 4, 0., dict(variance=2, signal=-1)),
            (2, 2 / 4, 1., dict(variance=0, signal=1, scale=0)),  # twice (1, 0)
        ]
    )
    def test_of_known_gradients(self, groups, squares, square, expected):
        assert noise_scale(groups, squares, square) == pytest.approx(expected)

    def test_the_table_sums_over_tokens_of_one_id(self):
        """Group 0 has 1 + 2 on id 7 and -1 on id 9; group 1 has 4 on id 9. What does not count has large numbers. Times
        two: (6, -2) and (0, 8), mean (3, 3), variance (9 + 25 + 9 + 25) / 1 = 68, signal 18 - 34 = -16."""
        weight = torch.tensor([[1., 1, 0], [1, 0, 0], [1, 0, 0]])
        action = torch.tensor([[7, 9, 7], [7, 9, 9], [9, 7, 7]])
        slope = torch.tensor([[1., -1, 50], [2, 60, 0], [4, 70, 80]])
        found = noise_of_table(make_batch(weight, action=action, group=torch.tensor([0, 0, 1])), slope)
        assert found == pytest.approx({'noise/table/variance': 68, 'noise/table/signal': -16})


class TestInWeights:

    @pytest.mark.parametrize(
        'learn', [long(dict()), dict(micro_batch_tokens=30),
                  long(dict(loss='dapo', adv_method='no_std'))]
    )
    def test_is_that_of_the_gradients_of_each_half(self, learn):
        """A step on the rows of half a group alone, the others without a reward, gives the half's gradient."""
        still = dict(learning_rate=1e-12, grad_clip_value=1e9, batch_groups=3, entropy=dict(weight=0.0))
        policy = token_policy(collect=dict(groups=3), instruments=dict(noise_every=1), **still, **learn)
        data, adv = sample_groups(policy, [0, 1, 2], reward=reward), policy.advantage.of
        found = parts(policy.learn_mode.forward(data), 'weights')

        def of_half(group, half):

            def of_rows(batch):
                return adv(batch) * ((batch.group == group) & (batch.row % 2 == half))

            policy.learning.bind(policy.spec, types.SimpleNamespace(of=of_rows, method='no_std'))
            policy.learn_mode.forward(data)
            return gradient(policy).double()

        halves = torch.stack([torch.stack([of_half(group, half) for half in (0, 1)]) for group in range(3)])
        groups = 3 * halves.sum(1)  # (3, D)
        variance = (groups - groups.mean(0)).square().sum() / 2
        signal = groups.mean(0).square().sum() - variance / 3
        within = (3 * (halves[:, 0] - halves[:, 1])).square().sum() / 3 / variance
        assert variance > 1e-6
        assert found['variance'] == pytest.approx(variance.item(), rel=1e-4)
        assert found['signal'] == pytest.approx(signal.item(), rel=1e-3)
        assert found['within'] == pytest.approx(within.item(), rel=1e-4)
        assert found.get('scale', -1) == pytest.approx((variance / signal).item() if signal > 0 else -1, rel=1e-3)

    def test_every_few_updates_and_nothing_is_changed(self):
        policies = [token_policy(learning_rate=1e-2, instruments=dict(noise_every=every)) for every in (0, 2)]
        for policy, expected in zip(policies, ([False] * 3, [True, False, True])):
            found = [update(policy) for _ in range(3)]
            assert [bool(parts(metrics, 'weights')) for metrics in found] == expected
            assert all(parts(metrics, 'table')['variance'] > 0 for metrics in found)
        assert torch.equal(*map(weights, policies))

    @pytest.mark.parametrize('groups, of_row', [([0], reward), ([0, 1], same_reward)])
    def test_neither_one_group_nor_no_row_has_a_scale(self, groups, of_row):
        metrics = update(token_policy(instruments=dict(noise_every=1), drop_equal_groups=True), groups, of_row)
        assert not any(name.startswith('noise/') for name in metrics)

    @pytest.mark.parametrize('model, kinds', [(DISCRETE, ['table', 'weights']), (CONTINUOUS, ['weights'])])
    def test_continuous_actions_have_no_table(self, model, kinds):
        policy = step_policy(model, learn=dict(batch_groups=2), instruments=dict(noise_every=1))
        groups = [sample_steps(policy, [3, 5], lambda row, step: float(row), number=n) for n in (0, 1)]
        metrics = policy.learn_mode.forward(groups)
        assert sorted({name.split('/')[1] for name in metrics if name.startswith('noise/')}) == kinds
