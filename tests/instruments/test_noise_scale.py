"""The noise scale against numbers worked out by hand, and against the gradient of each group alone."""
import pytest
import torch

from ding_grpo.instruments.noise_scale import noise_of_table, noise_scale

from tests.policies import make_batch, make_policy, sample_groups
from tests.learn.test_grpo import reward, vector
from tests.act.test_step_actor import CONTINUOUS, DISCRETE, make, sample_group


def parts(metrics, kind):
    return {name.split('/')[2]: value for name, value in metrics.items() if name.startswith(f'noise/{kind}/')}


@pytest.mark.unittest
class TestByHand:

    def test_of_known_gradients(self):
        """Gradients (3, 0), (1, 2), (2, 1) of three groups: their mean is (2, 1), the variance ((1 + 1) + (1 + 1) + 0)
        / 2 = 2, the signal 5 - 2 / 3. The parts of the batch's gradient are a third of them."""
        found = noise_scale(3, (9 + 5 + 5) / 9, 5.)
        assert found == pytest.approx(dict(variance=2, signal=13 / 3, scale=6 / 13))

    def test_groups_that_cancel_have_no_scale(self):
        """(1, 0) and (-1, 0): the mean is 0 and the variance 2, so the signal is -1, and a ratio would be negative."""
        assert noise_scale(2, 2 / 4, 0.) == pytest.approx(dict(variance=2, signal=-1))

    def test_groups_that_agree_have_no_noise(self):
        """Twice (1, 0)."""
        assert noise_scale(2, 2 / 4, 1.) == pytest.approx(dict(variance=0, signal=1, scale=0))

    def test_the_table_sums_over_tokens_of_one_id(self):
        """Group 0 has 1 + 2 on id 7 and -1 on id 9; group 1 has 4 on id 9. What does not count has large numbers. Times
        two: (6, -2) and (0, 8), mean (3, 3), variance (9 + 25 + 9 + 25) / 1 = 68, signal 18 - 34 = -16."""
        weight = torch.tensor([[1., 1, 0], [1, 0, 0], [1, 0, 0]])
        action = torch.tensor([[7, 9, 7], [7, 9, 9], [9, 7, 7]])
        slope = torch.tensor([[1., -1, 50], [2, 60, 0], [4, 70, 80]])
        found = noise_of_table(make_batch(weight, action=action, group=torch.tensor([0, 0, 1])), slope)
        assert found == pytest.approx({'noise/table/variance': 68, 'noise/table/signal': -16})


@pytest.mark.unittest
class TestInWeights:

    @pytest.mark.parametrize('learn', [dict(), dict(micro_batch_tokens=12), dict(loss='dapo', adv_method='no_std')])
    def test_is_that_of_the_gradients_of_each_half(self, think_answer, learn):
        """A step on the rows of half a group alone, the others without a reward, gives the half's gradient."""
        main, create = think_answer
        main.policy.learn.update(entropy_weight=0.0, learning_rate=1e-12, grad_clip_value=1e9, noise_every=1, **learn)
        main.policy.learn.batch_size = main.policy.collect.n_sample = 3
        policy = make_policy(main, create)
        data = sample_groups(policy, [0, 1, 2], reward=reward)
        found = parts(policy.learn_mode.forward(data), 'weights')
        adv = policy._advantage.of

        def gradient(chosen):
            """Of the rows that ``chosen(group, row)`` names."""

            def of_rows(batch):
                rows = zip(batch.group.tolist(), batch.row.tolist())
                return adv(batch) * torch.tensor([float(chosen(*row)) for row in rows])

            policy._learning._advantage = type('OfRows', (), dict(of=staticmethod(of_rows), method='no_std'))
            policy.learn_mode.forward(data)
            return vector(p.grad for p in policy._model.parameters()).double()

        halves = torch.stack([
            torch.stack([gradient(lambda g, r: g == group and r % 2 == half) for half in (0, 1)]) for group in range(3)
        ])  # yapf: disable
        groups = 3 * halves.sum(1)  # (3, D)
        variance = (groups - groups.mean(0)).square().sum() / 2
        signal = groups.mean(0).square().sum() - variance / 3
        within = (3 * (halves[:, 0] - halves[:, 1])).square().sum() / 3 / variance
        assert variance > 1e-6
        assert found['variance'] == pytest.approx(variance.item(), rel=1e-4)
        assert found['signal'] == pytest.approx(signal.item(), rel=1e-3)
        assert found['within'] == pytest.approx(within.item(), rel=1e-4)
        assert found.get('scale', -1) == pytest.approx((variance / signal).item() if signal > 0 else -1, rel=1e-3)

    def test_every_few_updates_and_nothing_is_changed(self, think_answer):
        main, create = think_answer
        weights = []
        for every in (0, 2):
            main.policy.learn.update(learning_rate=1e-2, noise_every=every)
            policy = make_policy(main, create)
            found = [policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward)) for _ in range(3)]
            assert [bool(parts(metrics, 'weights')) for metrics in found] == [every == 2, False, every == 2]
            assert all(parts(metrics, 'table')['variance'] > 0 for metrics in found)
            weights.append(vector(policy._model.parameters()))
        assert torch.equal(*weights)

    def test_what_has_no_scale(self, think_answer):
        """One group has no spread; without a row there is no loss; continuous actions have no table."""
        main, create = think_answer
        main.policy.learn.update(noise_every=1, drop_equal_groups=True)
        policy = make_policy(main, create)
        for groups, of_row in (([0], reward), ([0, 1], lambda group, row: 1.)):
            metrics = policy.learn_mode.forward(sample_groups(policy, groups, reward=of_row))
            assert not any(name.startswith('noise/') for name in metrics)
        for model, kinds in ((DISCRETE, ['table', 'weights']), (CONTINUOUS, ['weights'])):
            policy = make(model, learn=dict(noise_every=1, batch_size=2))
            groups = [sample_group(policy, [3, 5], lambda row, step: float(row), number=n) for n in (0, 1)]
            metrics = policy.learn_mode.forward(groups)
            assert sorted({name.split('/')[1] for name in metrics if name.startswith('noise/')}) == kinds
