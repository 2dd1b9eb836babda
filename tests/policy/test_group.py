import pytest
import torch

from ding_grpo.policy.group import batch_metrics, collate_groups, fold_group, without_failed


def transition(action, reward, kept=None, **last):
    n = len(action)
    rewards = torch.zeros(n)
    rewards[-1] = reward
    return dict(
        prompt=torch.tensor([5, 6]),
        action=torch.tensor(action),
        logp=-torch.arange(1., n + 1),
        kept=kept,
        reward=rewards,
        reward_parts=last.get('reward_parts'),
        truncated=last.get('truncated'),
        failed=last.get('failed', False),
    )


def episode(action, reward, truncated=False, kept=None):
    return [transition(action, reward, kept, reward_parts=dict(a=reward, b=0.), truncated=truncated)]


@pytest.mark.unittest
class TestFoldGroup:

    def test_uneven_lengths_are_padded_and_masked(self):
        sample = fold_group([episode([1, 2, 3], 1.), episode([4], 0., truncated=True)])
        assert sample['prompt'].tolist() == [5, 6]
        assert sample['action'].tolist() == [[1, 2, 3], [4, 0, 0]]
        assert sample['weight'].tolist() == [[1, 1, 1], [1, 0, 0]]
        assert sample['logp_old'].tolist() == [[-1, -2, -3], [-1, 0, 0]]
        assert sample['reward'].tolist() == [[0, 0, 1], [0, 0, 0]]
        assert sample['reward_parts']['a'].tolist() == [1, 0]
        assert sample['truncated'].tolist() == [0, 1]
        assert 'kept' not in sample

    def test_several_steps_are_one_trajectory(self):
        steps = [transition([1, 2], 0.), *episode([3], 2.)]
        sample = fold_group([steps, episode([7], 0.)])
        assert sample['action'].tolist() == [[1, 2, 3], [7, 0, 0]]
        assert sample['reward'].tolist() == [[0, 0, 2], [0, 0, 0]]

    def test_kept_ids_are_padded_with_none(self):
        sample = fold_group(
            [episode([1, 2], 0., kept=torch.tensor([[1, 9], [2, -1]])),
             episode([4], 0., kept=torch.tensor([[4, 3]]))]
        )
        assert sample['kept'].tolist() == [[[1, 9], [2, -1]], [[4, 3], [-1, -1]]]

    def test_different_starts_are_no_group(self):
        other = episode([1], 0.)
        other[0]['prompt'] = torch.tensor([5, 7])
        with pytest.raises(ValueError, match='start differently'):
            fold_group([episode([1], 0.), other])


@pytest.mark.unittest
class TestCollateGroups:

    def setup_method(self):
        self.samples = [
            fold_group([episode([1, 2, 3], 1.), episode([4], 0., True)]),
            fold_group([episode([7], 1.), episode([8], 1.)]),
        ]

    def test_rows_of_all_groups(self):
        batch = collate_groups(self.samples)
        assert batch['action'].tolist() == [[1, 2, 3], [4, 0, 0], [7, 0, 0], [8, 0, 0]]
        assert batch['group'].tolist() == [0, 0, 1, 1] and len(batch['prompts']) == 4

    def test_kept_ids_behind_the_end_are_a_distribution(self):
        samples = [
            fold_group([episode([1, 2], 0., kept=torch.tensor([[1, 9], [2, 5]]))] * 2),
            fold_group([episode([4], 0., kept=torch.tensor([[4, 3]]))] * 2),
        ]
        assert collate_groups(samples)['kept'].tolist() == [[[1, 9], [2, 5]]] * 2 + [[[4, 3], [0, -1]]] * 2

    def test_metrics_by_hand(self):
        for sample, equal in zip(self.samples, (False, True)):
            sample['equal'] = equal
        metrics = batch_metrics(collate_groups(self.samples))
        expected = dict(
            reward_mean=0.75,
            reward_std=0.75 ** 0.5 * 0.5,
            equal_groups=0.5,
            completion_length_mean=1.5,
            completion_length_min=1,
            completion_length_max=3,
            truncated=0.25,
            failed=0,
            repetition=0,
            reward_a_mean=0.75,
            reward_a_std=0.75 ** 0.5 * 0.5,
            reward_b_mean=0,
            reward_b_std=0
        )
        assert metrics == pytest.approx(expected)
        assert all(type(value) is float for value in metrics.values())  # DI-engine's monitor takes nothing else

    def test_metrics_leave_out_what_could_not_be_scored(self):
        groups = [
            fold_group([episode([1, 2, 3], 1.), episode([4, 4, 4, 4], 9.)]),
            fold_group([episode([7], 5.), episode([8], 5.)])
        ]
        for sample in groups:
            sample['failed'] = torch.tensor([0., 1.])
            sample['equal'] = True
        groups[0]['failed'] = torch.tensor([0., 1.])
        groups[1]['failed'] = torch.tensor([1., 1.])
        for order in (groups, groups[::-1]):
            metrics = batch_metrics(collate_groups(order))
            assert metrics['failed'] == 0.75 and metrics['reward_mean'] == 1 and metrics['equal_groups'] == 1
            assert metrics['completion_length_max'] == 3 and metrics['reward_a_mean'] == 1
        assert batch_metrics(collate_groups(groups[1:])) == dict(failed=1.0)  # and no NaN of nothing

    def test_a_part_that_never_applies_has_no_mean(self):
        for sample in self.samples:
            sample.update(equal=False, reward_parts=dict(a=torch.tensor([float('nan')] * 2)))
        assert not any(name.startswith('reward_a') for name in batch_metrics(collate_groups(self.samples)))


@pytest.mark.unittest
class TestWithoutFailed:

    def test_rows_and_groups_that_failed_are_gone(self):
        kept = torch.tensor([[1, 9], [2, 5]])
        whole, part, none = (
            fold_group([episode([1, 2], 1., kept=kept), episode([3, 4], 2., kept=kept)]) for _ in '123'
        )
        part['failed'] = torch.tensor([1., 0.])
        none['failed'] = torch.tensor([1., 1.])
        left = without_failed([whole, part, none])
        assert len(left) == 2 and left[0] is whole
        assert left[1]['action'].tolist() == [[3, 4]] and left[1]['reward'].tolist() == [[0, 2]]
        assert left[1]['reward_parts']['a'].tolist() == [2] and left[1]['kept'].shape == (1, 2, 2)
        assert torch.equal(left[1]['prompt'], whole['prompt'])
        assert collate_groups(left)['action'].shape == (3, 2)
