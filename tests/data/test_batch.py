import pytest
import torch

from ding_common import ConfigError
from ding_grpo.data.batch import Batch
from ding_grpo.data.folding import fold_group
from ding_grpo.data.micro_batch import split_rows
from ding_grpo.learn.metrics import batch_metrics, repetition


def transition(action, reward, kept=None, prompt=(5, 6), turn=0, parts=None, truncated=None):
    """A step with the log-probabilities -1, -2, ..."""
    rewards = torch.zeros(len(action))
    rewards[-1] = reward
    return dict(
        prompt=torch.tensor(prompt),
        turn=turn,
        anchor=None,
        action=torch.tensor(action),
        logp=-torch.arange(1.,
                           len(action) + 1),
        kept=None if kept is None else torch.tensor(kept),
        reward=rewards,
        reward_parts=parts,
        truncated=truncated,
        failed=False,
    )


def episode(action, reward, truncated=False, kept=None):
    return [transition(action, reward, kept, parts=dict(a=reward, b=0.), truncated=truncated)]


def dialogue(*turns):
    """Transitions of turns (own tokens, reply, reward) with kept ids; the last reply is not stored."""
    prompt, steps = [5, 6], []
    for number, (own, reply, reward) in enumerate(turns):
        ids = [[token, 9] for token in own]
        steps.append(transition(own, reward, ids, prompt, number, dict(a=1., b=0.), False))
        prompt = [*prompt, *own, *reply]
    return steps


def steps_of(*groups):
    """Rows of single numbers, which are observation and action."""

    def step(x):
        made = dict(obs=dict(x=torch.tensor(x)), action=torch.tensor([x]), logp=torch.zeros(1), reward=torch.ones(1))
        return dict(made, truncated=False, failed=False)

    return Batch.of([fold_group([[step(x) for x in row] for row in rows], shared_start=False) for rows in groups])


def lists(sample, *names):
    return [sample[name].tolist() for name in names]


class TestFoldGroup:

    def test_uneven_lengths_are_padded_and_masked(self):
        sample = fold_group([episode([1, 2, 3], 1.), episode([4], 0., truncated=True)])
        assert lists(sample, 'action', 'weight') == [[[1, 2, 3], [4, 0, 0]], [[1, 1, 1], [1, 0, 0]]]
        assert lists(sample, 'logp_old', 'reward') == [[[-1, -2, -3], [-1, 0, 0]], [[0, 0, 1], [0, 0, 0]]]
        assert lists(sample, 'prompt', 'truncated') == [[5, 6], [0, 1]] and 'kept' not in sample
        assert sample['reward_parts']['a'].tolist() == [1, 0]

    @pytest.mark.parametrize('shared_start', [True, False])
    def test_different_prompts_are_no_group(self, shared_start):
        """A sample has one prompt: the other rows would be learned after a prompt that they did not have."""
        other = episode([1], 0.)
        other[0]['prompt'] = torch.tensor([5, 7])
        with pytest.raises(ValueError, match=f'shared_start = {shared_start}: .* start with different prompts'):
            fold_group([episode([1], 0.), other], shared_start)


class TestTurns:

    @pytest.fixture
    def sample(self):
        return fold_group([dialogue(([1, 2], [7, 8, 7], .5), ([3], [8], 2.)), dialogue(([4], [], 1.))])

    def test_replies_are_between_turns_without_a_weight(self, sample):
        assert {name: sample[name].tolist()
                for name in ('action', 'weight', 'turn', 'reward', 'logp_old')} == dict(
                    action=[[1, 2, 7, 8, 7, 3], [4, 0, 0, 0, 0, 0]],
                    weight=[[1, 1, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0]],
                    turn=[[0, 0, 0, 0, 0, 1], [0, -1, -1, -1, -1, -1]],
                    reward=[[0, .5, 0, 0, 0, 2], [1, 0, 0, 0, 0, 0]],
                    logp_old=[[-1, -2, 0, 0, 0, -1], [-1, 0, 0, 0, 0, 0]]
                )
        none = [-1, -1]
        assert sample['kept'].tolist() == [[[1, 9], [2, 9], none, none, none, [3, 9]], [[4, 9], *[none] * 5]]
        assert sample['length'].tolist() == [6, 1]

    def test_weights_of_each_token(self):
        """Two rows of which one was continued with newer weights, and a group of which nothing is known."""
        rows = dialogue(([1, 2], [7, 8], .5), ([3], [8], 2.)), dialogue(([4], [], 1.))
        for step, after in zip([*rows[0], *rows[1]], ([5, 6], [6], [5])):
            step['sampled_after'] = torch.tensor(after)
        sample = fold_group(list(rows))
        assert sample['sampled_after'].tolist() == [[5, 6, -1, -1, 6], [5, -1, -1, -1, -1]]
        assert Batch.of([sample]).take(torch.tensor([1])).sampled_after.tolist() == [[5]]
        del sample['sampled_after']
        assert Batch.of([dict(sample, sampled_after=7)]).sampled_after.tolist() == [7, 7]

    def test_a_turn_in_several_steps_has_no_reply(self):
        steps = [
            transition([1], 0.),
            transition([2], 0., prompt=[5, 6, 1]),
            transition([3], 1., None, [5, 6, 1, 2, 7], 1)
        ]
        for step in steps:
            step.update(reward_parts={}, truncated=False)
        sample = fold_group([steps] * 2)
        assert lists(sample, 'weight', 'turn') == [[[1, 1, 0, 1]] * 2, [[0, 0, 0, 1]] * 2]

    @pytest.mark.parametrize(
        'prompt, told', [([5, 6, 1, 3, 7], r'token 3 .*turn 0 \(2 became 3\)'), ([5, 6, 1], r'token 3.*it is missing')]
    )
    def test_an_environment_that_encodes_again_is_refused_with_its_place(self, prompt, told):
        steps = dialogue(([1, 2], [7], 0.), ([3], [], 0.))
        steps[1]['prompt'] = torch.tensor(prompt)
        with pytest.raises(ConfigError, match=told):
            fold_group([steps, dialogue(([4], [], 0.))])

    def test_a_length_is_no_count_of_weights(self, sample):
        # the last own token is after the holes: a row cut at the number of its weights would lose it
        batch = Batch.of([sample, fold_group([episode([7], 1., kept=[[7, 9]])] * 2)])
        taken = batch.take(torch.tensor([2, 0]))
        assert taken.action.tolist() == [[7, 0, 0, 0, 0, 0], [1, 2, 7, 8, 7, 3]] and taken.length.tolist() == [1, 6]
        # a prompt of 2, and 6 - 1 tokens of the first row to read
        assert [part.tolist() for part in split_rows(batch, 7)] == [[0, 1], [2, 3]]
        assert [part.tolist() for part in split_rows(batch, 6)] == [[0], [1, 2, 3]]

    def test_only_own_tokens_are_measured(self, sample):
        metrics = batch_metrics(Batch.of([dict(sample, equal=False)]))
        assert metrics['completion_length_mean'] == 2 and metrics['completion_length_max'] == 3

    @pytest.mark.parametrize(
        'action, weight, share',
        [
            ([1, 2, 1, 2, 1, 2], [1] * 6, 0.6),  # pairs 12 21 12 21 12: three of five were there before
            ([1, 1, 1, 1, 1, 1], [1] * 6, 0.8),
            ([1, 2, 3, 4, 5, 6], [1] * 6, 0.),
            ([1, 2, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], 0.),
            # pairs within turns: 12; 12 21 12. Two of four occur earlier; 88 is the environment's
            ([1, 2, 8, 8, 8, 1, 2, 1, 2], [1, 1, 0, 0, 0, 1, 1, 1, 1], 0.5),
        ]
    )
    def test_repetition_by_hand(self, action, weight, share):
        assert repetition(torch.tensor([action]), torch.tensor([weight]), 2).item() == pytest.approx(share)


class TestBatch:

    @pytest.fixture
    def samples(self):
        uneven = fold_group([episode([1, 2, 3], 1.), episode([4], 0., True)])
        return [dict(uneven, equal=False), dict(fold_group([episode([7], 1.), episode([8], 1.)]), equal=True)]

    def test_kept_ids_after_the_end_are_a_distribution(self):
        rows = episode([1, 2], 0., kept=[[1, 9], [2, 5]]), episode([4], 0., kept=[[4, 3]])
        batch = Batch.of([fold_group([row] * 2) for row in rows])
        assert batch.kept.tolist() == [[[1, 9], [2, 5]]] * 2 + [[[4, 3], [0, -1]]] * 2

    def test_metrics_by_hand(self, samples):
        metrics = batch_metrics(Batch.of(samples))
        expected = dict(
            reward_mean=0.75,
            reward_std=0.75 ** 0.5 * 0.5,
            equal_groups=0.5,
            filtered_groups=0,
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
            dict(fold_group(rows), failed=torch.tensor(failed), equal=True) for rows, failed in (
                ([episode([1, 2, 3], 1.), episode([4, 4, 4, 4], 9.)], [0., 1.]),
                ([episode([7], 5.), episode([8], 5.)], [1., 1.]),
            )
        ]
        for order in (groups, groups[::-1]):
            metrics = batch_metrics(Batch.of(order))
            assert metrics['failed'] == 0.75 and metrics['reward_mean'] == 1 and metrics['equal_groups'] == 1
            assert metrics['completion_length_max'] == 3 and metrics['reward_a_mean'] == 1
        assert batch_metrics(Batch.of(groups[1:])) == dict(failed=1.0)  # and no NaN of nothing

    def test_trees_by_hand(self):
        """Rows 0 and 1 share two tokens, then a third that is a reply, and divide; rows 2 and 3 share all of their
        three; the rows of the other group share nothing. Leaders are named by any number."""
        trees = [
            dict(
                fold_group([episode(row, 1.) for row in rows]),
                leader=torch.tensor(leader),
                weight=torch.tensor(weight, dtype=torch.float32),
                failed=torch.tensor([0., 0., 0., 1.])[:len(rows)],
            ) for rows, leader, weight in (
                (
                    [[1, 2, 9, 3], [1, 2, 9, 4], [5, 6, 7], [5, 6, 7]],
                    [[0, 0, 0, 0], [0, 0, 0, 1], [7, 7, 7, -1], [7, 7, 7, -1]],
                    [[1, 1, 0, 1]] * 2 + [[1, 1, 1, 0]] * 2,
                ),
                ([[8], [8]], [[0], [1]], [[1], [1]]),
            )
        ]
        for group in trees:
            group['equal'] = False
        metrics = batch_metrics(Batch.of(trees))
        # of the first group 2 + 1 + 1 and 3 of its 12 own tokens were sampled, both of the second one's 2
        assert metrics['tree_sampled'] == pytest.approx((4 + 3 + 2) / 14)
        assert metrics['tree_rows'] == pytest.approx((3 + 2) / 2)
        assert not any(name.startswith('tree') for name in batch_metrics(Batch.of([dict(trees[1], leader=None)])))

    def test_a_part_that_never_applies_has_no_mean(self, samples):
        parts = dict(a=torch.tensor([float('nan')] * 2))
        metrics = batch_metrics(Batch.of([dict(sample, reward_parts=parts) for sample in samples]))
        assert not any(name.startswith('reward_a') for name in metrics)


class TestRows:

    def test_rows_and_groups_that_failed_are_gone(self):
        kept = [[1, 9], [2, 5]]
        group = fold_group([episode([1, 2], 1., kept=kept), episode([3, 4], 2., kept=kept)])
        batch = Batch.of([group, *(dict(group, failed=torch.tensor(failed)) for failed in ([1., 0.], [1., 1.]))])
        left = batch.without(batch.failed)
        assert left.group.tolist() == [0, 0, 1] and left.row.tolist() == [0, 1, 1]
        assert left.action.tolist() == [[1, 2], [3, 4], [3, 4]] and left.reward.tolist() == [[0, 1], [0, 2], [0, 2]]
        assert left.reward_parts['a'].tolist() == [1, 2, 2] and left.kept.shape == (3, 2, 2)
        assert torch.equal(left.prompts[2], group['prompt'])
        assert len(batch.without(torch.ones(6, dtype=torch.bool)).prompts) == 0

    def test_taken_rows_are_no_longer_than_the_longest_of_them(self):
        batch = Batch.of([fold_group([episode([1, 2, 3], 1.), episode([4], 0.)]), fold_group([episode([7], 1.)] * 2)])
        batch.adv = torch.arange(4.)
        assert batch.action.tolist() == [[1, 2, 3], [4, 0, 0], [7, 0, 0], [7, 0, 0]]
        part = batch.take(torch.tensor([3, 1]))
        assert part.action.tolist() == [[7], [4]] and part.adv.tolist() == [3, 1] and part.group.tolist() == [1, 0]
        assert batch.take(torch.arange(4)) is batch

    def test_observations_go_with_their_rows(self):
        batch = steps_of([[1, 2, 3], [4]], [[5, 6], [7]])
        assert batch.take(torch.tensor([2, 0])).obs['x'].tolist() == [5, 6, 1, 2, 3]
        assert batch.without(batch.group == 0).obs['x'].tolist() == [5, 6, 7]

    def test_rows_on_a_gpu_are_taken_without_a_wait_for_copies(self, gpu):
        batch = steps_of([[1, 2, 3], [4]], [[5, 6], [7]])
        batch.final_obs = dict(x=torch.arange(4.))
        there = batch.to('cuda')
        gpu.counts.reset()
        taken = there.take(torch.tensor([2, 0]))
        assert not gpu.counts.copies['blocking'] and taken.final_obs['x'].is_cuda
        assert taken.final_obs['x'].tolist() == [2, 0] and taken.obs['x'].tolist() == [5, 6, 1, 2, 3]

    def test_steps_are_groups_of_one_row(self):
        batch = steps_of([[1, 2], [3]])
        batch.adv, batch.sampled_after = torch.tensor([[.1, .2], [.3, 0.]]), torch.tensor([5, 6])
        steps = batch.steps()
        assert steps.adv.flatten().tolist() == pytest.approx([.1, .2, .3]) and steps.sampled_after.tolist() == [5, 5, 6]
        assert steps.group.tolist() == [0, 1, 2] and steps.obs['x'].tolist() == [1, 2, 3]
        drawn = [b.obs['x'].tolist() for b in steps.mini_batches(2, torch.Generator().manual_seed(0))]
        assert sorted(sum(drawn, [])) == [1, 2, 3] and [len(x) for x in drawn] == [2, 1]

    def test_mini_batches_are_of_whole_groups(self):
        batch = Batch.of([fold_group([episode([g], 1.), episode([g, g], 1.)]) for g in range(5)])
        batch = batch.without(batch.action[:, 0] == 2)
        drawn = [b.action[:, 0].tolist() for b in batch.mini_batches(3, torch.Generator().manual_seed(1))]
        assert [len(x) for x in drawn] == [6, 2] and sorted(sum(drawn, [])) == [0, 0, 1, 1, 3, 3, 4, 4]
        assert all(x[::2] == x[1::2] for x in drawn)
        assert list(batch.without(batch.group >= 0).mini_batches(3, torch.Generator())) == []
