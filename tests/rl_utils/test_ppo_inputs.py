"""The forms of data that DI-engine's PPO takes. Expected numbers are those of the installed DI-engine."""
import pytest
import torch
from ding.rl_utils import ppo as ding_ppo

from ding_grpo.rl_utils import (
    efficient_method, ppo_data, ppo_data_continuous, ppo_error, ppo_error_continuous, ppo_policy_error,
    ppo_policy_error_continuous, ppo_value_error
)


def of_ding(name):
    """A namedtuple of the installed DI-engine, of which the release has no field for the pretrained policy."""
    kind = getattr(ding_ppo, name)
    return lambda *fields: kind(*fields, *[None] * (len(kind._fields) - len(fields)))


def tuple_of(*fields):
    return fields


def numbers(result):
    """The parts of a loss that the release of DI-engine has, and the info."""
    loss, info = result
    return [x.item() for name, x in loss._asdict().items() if name != 'kl_div'] + list(info)


class TestDiscrete:

    def setup_method(self):
        torch.manual_seed(0)
        self.new, self.old = (torch.randn(24, 5) for _ in range(2))
        self.action, self.adv = torch.randint(0, 5, (24, )), torch.randint(-2, 3, (24, ))
        self.weight = torch.arange(24) % 3

    def expected(self, **options):
        data = of_ding('ppo_policy_data')(self.new, self.old, self.action, self.adv.float(), self.weight.float())
        return numbers(ding_ppo.ppo_policy_error(data, **options))

    @pytest.mark.parametrize('log_prob_fn', [None, efficient_method])
    @pytest.mark.parametrize(
        'lead, options', [((24, ), dict()), ((4, 6), dict(dual_clip=1.)), ((1, 2, 3, 4), dict(dual_clip=1.5))], ids=str
    )
    def test_leading_dimensions_and_integer_advantages(self, lead, log_prob_fn, options):
        data = (self.new, self.old, self.action, self.adv, self.weight)
        data = tuple(x.view(*lead, *x.shape[1:]) for x in data)
        found = ppo_policy_error(data, log_prob_fn=log_prob_fn, mask_loss=False, mask_metrics=False, **options)
        assert numbers(found) == pytest.approx(self.expected(**options), abs=1e-6)

    def test_a_single_position(self):
        loss, _ = ppo_policy_error((self.new[0], self.new[0], self.action[0], torch.tensor(2), None))
        assert loss.policy_loss.item() == pytest.approx(-2)

    @pytest.mark.parametrize('kind', [torch.int32, torch.float32])
    def test_actions_of_another_type(self, kind):
        data = (self.new, self.old, self.action.to(kind), self.adv, self.weight)
        assert numbers(ppo_policy_error(data, mask_metrics=False)) == pytest.approx(self.expected())

    def test_agents_after_further_dimensions(self):
        # agents are dimension 1: 2 rows, 3 agents, 4 steps
        new, old = (x.view(2, 3, 4, 5) for x in (self.new, self.old))
        action, adv = self.action.view(2, 3, 4), self.adv[:8].view(2, 4)
        found = numbers(ppo_policy_error((new, old, action, adv, None)))
        flat = [x.transpose(1, 2).reshape(8, 3, 5) for x in (new, old)]
        data = of_ding('ppo_policy_data')(*flat, action.transpose(1, 2).reshape(8, 3), adv.flatten(), None)
        assert found == pytest.approx(numbers(ding_ppo.ppo_policy_error(data)), abs=1e-6)

    def test_plain_tuples(self):
        """With and without the last field, the pretrained policy."""
        value = torch.randn(24)
        data = (self.new, self.old, self.action, value, value + 1, self.adv, value * 2, self.weight)
        expected = numbers(ding_ppo.ppo_error(of_ding('ppo_data')(*data)))
        for given in (data, (*data, None)):
            assert numbers(ppo_error(given, mask_metrics=False)) == pytest.approx(expected)
        assert ppo_value_error((value, value + 1, value * 2, self.weight)).item() == pytest.approx(expected[1])

    def test_values_of_another_shape_than_the_advantages(self):
        value = torch.randn(24, 1)
        loss, _ = ppo_error((self.new, self.old, self.action, value, value, self.adv, value + 2, None))
        assert loss.value_loss.item() == pytest.approx(2)


class TestContinuous:

    def setup_method(self):
        torch.manual_seed(0)
        self.action, self.adv, self.value = torch.randn(4, 3), torch.randint(-2, 3, (4, )), torch.randn(4)
        self.new, self.old = (dict(mu=torch.randn(4, 3), sigma=torch.rand(4, 3) + 0.5) for _ in range(2))

    def whole(self, error, kind):
        value = self.value
        data = (self.new, self.old, self.action, value, value + 1, self.adv, value * 2, None)
        return numbers(error(kind(*data)))

    def assert_as_ding(self, kind=tuple_of):
        expected = self.whole(ding_ppo.ppo_error_continuous, of_ding('ppo_data_continuous'))
        assert self.whole(ppo_error_continuous, kind) == pytest.approx(expected, abs=1e-6)

    @pytest.mark.parametrize('kind', [ppo_data, ppo_data_continuous, of_ding('ppo_data'), tuple_of])
    def test_any_tuple(self, kind):
        self.assert_as_ding(kind)

    def test_one_sigma_for_all_rows(self):
        self.new['sigma'] = torch.tensor([0.5, 1., 2.], requires_grad=True)
        self.assert_as_ding()

    def test_an_old_policy_without_the_last_dimension(self):
        self.old = dict(mu=torch.randn(4), sigma=torch.rand(4) + 0.5)
        self.assert_as_ding()

    def test_further_leading_dimensions(self):

        def turned(x):
            return {k: turned(v) for k, v in x.items()} if isinstance(x, dict) else x.unflatten(0, (2, 2))

        data = (self.new, self.old, self.action, self.adv, torch.arange(4))
        expected, found = (
            ppo_policy_error_continuous(given, dual_clip=1.5) for given in (data, tuple(map(turned, data)))
        )
        assert numbers(found) == pytest.approx(numbers(expected))
