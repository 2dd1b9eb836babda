"""Figures of batches, against numbers worked out by hand."""
import math

import pytest
import torch

from ding_grpo.instruments.evidence import checksum, of_change, of_mask, of_samples

from tests.policies import make_batch

pytestmark = pytest.mark.unittest


def two_groups(**fields):
    """Groups of two rows; rewards 1, 1 and 0, 2; the rows of group 0 are copies."""
    weight = torch.tensor([[1., 1, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]])
    action = torch.tensor([[5, 6, 0], [5, 6, 9], [5, 6, 7], [5, 6, 8]])  # 9 is after the end of its row
    reward = torch.tensor([[0., 1, 0], [0, 1, 0], [0, 0, 0], [0, 0, 2]])
    group = torch.tensor([0, 0, 1, 1])
    return make_batch(weight, **dict(dict(action=action, reward=reward, group=group), **fields))


class TestOfSamples:

    def test_counts(self):
        truncated = torch.tensor([False, False, True, False])
        found = of_samples(two_groups(truncated=truncated))
        assert found['mean'] == 1 and found['std'] == pytest.approx(math.sqrt(0.5))
        assert {k: found[k] for k in ('rows', 'cut', 'groups', 'equal', 'copies', 'low', 'high')} == \
            dict(rows=4, cut=1, groups=2, equal=1, copies=1, low=0, high=2)

    def test_copies_of_the_best_row_are_a_solution(self):
        found = of_samples(two_groups(reward=torch.tensor([[0., 9, 0], [0, 9, 0], [0, 0, 0], [0, 0, 2]])))
        assert (found['copies'], found['identical']) == (0, 1)

    def test_copies_count_where_all_rewards_are_equal(self):
        assert of_samples(two_groups(reward=torch.zeros(4, 3)))['copies'] == 1

    def test_failed_rows_do_not_count(self):
        found = of_samples(two_groups(failed=torch.tensor([False, False, False, True])))
        # group 1 has one row left, which is compared with none
        assert (found['rows'], found['groups'], found['equal'], found['high']) == (3, 1, 1, 1)
        assert of_samples(two_groups(failed=torch.ones(4, dtype=torch.bool))) == {}

    def test_parts_are_weighted_and_skip_rows_without_them(self):
        part = torch.tensor([1., float('nan'), 3, 2])
        found = of_samples(two_groups(reward_parts=dict(a=part, b=torch.full((4, ), float('nan')))), dict(a=0.5, b=1))
        assert found['parts'] == dict(a=[0.5, 1.5, 1.0])

    def test_continuous_actions(self):
        action = torch.zeros(4, 3, 2)
        action[3, 2, 1] = 0.5
        assert of_samples(two_groups(action=action))['copies'] == 1

    def test_rows_of_other_lengths_are_no_copies(self):
        weight = torch.tensor([[1., 0], [1, 1]])
        assert of_samples(make_batch(weight, action=torch.zeros(2, 2).long()))['copies'] == 0


class TestOfMask:

    def test_right(self):
        assert of_mask(two_groups()) == dict(outside=0, inside=10, steps=10)

    def test_inverted(self):
        batch = two_groups()
        batch.weight = 1 - batch.weight
        assert of_mask(batch) == dict(outside=2, inside=0, steps=10)


class TestOfChange:

    def change(self, adv, after, fresh=(True, True)):
        weight, before = torch.tensor([[1., 1], [1, 0]]), torch.tensor([[-1., -2], [-3, -99]])
        entropy = torch.tensor([[1.5, 1.5], [1.5, 1.5]])
        batch = make_batch(weight, adv=torch.tensor(adv))
        return of_change(batch, before, entropy, torch.tensor(fresh).unsqueeze(1), torch.tensor(after))

    def test_by_hand(self):
        # changes +0.1, +0.3, -0.2; ln 1.2 = 0.182: two of three leave the range
        found = self.change([1., -1.], [[-0.9, -1.7], [-3.2, 0.]])
        assert found['steps'] == 3 and found['moved'] == pytest.approx(0.2, abs=1e-6)
        assert found['outside'] == pytest.approx(2 / 3)
        assert found['follow'] == pytest.approx(1, abs=1e-6)  # all three as asked for
        # -log p - entropy: -0.5, 0.5, 1.5
        assert (found['fresh'], found['surprise'], found['squares']) == (3, pytest.approx(1.5), pytest.approx(2.75))

    def test_a_part_against_the_advantage(self):
        # 1 x 0.1 + 1 x (-0.3) + (-1) x (-0.2) = 0 of 0.6
        found = self.change([[1., 1.], [-1., 7.]], [[-0.9, -2.3], [-3.2, 0.]])
        assert found['follow'] == pytest.approx(0, abs=1e-6)

    def test_without_advantages_nothing_is_followed(self):
        assert 'follow' not in self.change([0., 0.], [[-0.9, -1.7], [-3.2, 0.]])

    def test_rows_of_older_weights_are_no_surprise(self):
        found = self.change([1., -1.], [[-0.9, -1.7], [-3.2, 0.]], fresh=(True, False))
        assert (found['fresh'], found['surprise'], found['squares']) == (2, pytest.approx(0), pytest.approx(0.5))


class TestChecksum:

    def test_one_bit(self):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        before = checksum(model, trained=True)
        assert before == checksum(model, trained=True)
        with torch.no_grad():
            model.weight[1, 2] = torch.nextafter(model.weight[1, 2], torch.tensor(9.))
        assert checksum(model, trained=True) != before

    def test_two_weights_that_change_places(self):
        model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
        model[0].weight.data.fill_(1)
        model[1].weight.data.fill_(2)
        before = checksum(model, trained=True)
        model[0].weight.data.fill_(2)
        model[1].weight.data.fill_(1)
        assert checksum(model, trained=True) != before

    def test_adapters_may_change(self):
        model = torch.nn.Linear(3, 2)
        model.weight.requires_grad_(False)
        before = checksum(model, trained=False)
        model.bias.data += 1
        assert checksum(model, trained=False) == before
        model.weight.data += 1
        assert checksum(model, trained=False) != before

    @pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16, torch.float64])
    def test_types(self, dtype):
        assert checksum(torch.nn.Linear(3, 2, dtype=dtype), trained=True) > 0
