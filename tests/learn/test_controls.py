"""What is left out, summed otherwise, or renewed on request."""
import math

import pytest
import torch

from ding_common import ConfigError
from ding_grpo.learn.advantage import Advantage
from ding_grpo.rl_utils import group_advantage
from tests.policies import make_batch, reward, sample_groups, token_policy, update, vector, weights


def learn(change=lambda sample: None, indices=(0, 1), of_row=reward, **options):
    """Weights and metrics after an update on two groups, which were changed after sampling."""
    policy = token_policy(learning_rate=1e-2, **options, entropy=dict(weight=0.0))
    data = sample_groups(policy, indices, reward=of_row)
    for sample in data:
        change(sample)
    return weights(policy), policy.learn_mode.forward(data), weights(policy)


class TestLeftOut:

    def test_truncated_rows_stay_out_of_the_loss(self):

        def other_tokens(sample):
            assert 0 < sample['truncated'].sum() < 4  # some were cut
            sample['action'][sample['truncated'] == 1] = 5

        _, metrics, masked = learn(mask_truncated=True)
        assert torch.equal(masked, learn(other_tokens, mask_truncated=True)[-1])
        assert not torch.equal(masked, learn(mask_truncated=False)[-1])
        assert metrics['completion_length_max'] == 6  # metrics count them

    @pytest.mark.parametrize(
        'method, action',
        [
            ('no_std', 9),
            ('reinforce_plus_plus', 9),
            ('optimal_token_baseline', 0),  # it reads all rows together, and another token rounds the others' norms
        ]
    )
    def test_rows_that_failed_are_neither_compared_nor_learned(self, method, action):

        def failing(value):

            def change(sample):
                sample['failed'][0], sample['reward'][0], sample['action'][0] = 1, value, min(int(value), action)

            return change

        (_, metrics, a), (_, _, b) = (learn(failing(value), adv_method=method) for value in (0., 9.))
        assert torch.equal(a, b) and metrics['failed'] == 0.25
        assert metrics['reward_mean'] == pytest.approx(sum(reward(g, r) for g in (0, 1) for r in (1, 2, 3)) / 6)

    def test_groups_that_failed_wholly(self):
        start, metrics, after = learn(lambda sample: sample['failed'].fill_(1))
        assert metrics['failed'] == 1 and metrics['optimizer_steps'] == 0
        assert torch.equal(after, start) and not any(math.isnan(value) for value in metrics.values())

    def test_the_loss_is_a_mean_of_those_that_could_be_scored(self):
        kept = ('action', 'logp_old', 'weight', 'length', 'turn', 'reward', 'truncated', 'failed')

        def failing(sample):
            sample['failed'][2:] = 1  # rewards 0 and 1 are left

        def removed(sample):
            sample.update({key: sample[key][:2] for key in kept}, reward_parts={}, equal=False)

        one, two = (learn(change, [0], lambda group, row: float(row % 2)) for change in (failing, removed))
        assert torch.equal(one[-1], two[-1]) and one[1]['grad_norm'] == two[1]['grad_norm'] > 0


class TestParts:

    def test_each_part_is_compared_by_itself(self):
        parts = dict(a=torch.tensor([1., 0., 0., 0.]), b=torch.tensor([0., float('nan'), 10., 0.]))
        batch = make_batch(torch.ones(4, 1), reward=torch.tensor([[1.], [0.], [0.5], [0.]]), reward_parts=parts)
        zero = torch.zeros(4).long()
        expected = group_advantage(parts['a'], zero)
        # the part does not apply to row 1
        expected[[0, 2, 3]] += 0.5 * group_advantage(torch.tensor([0., 10., 0.]), zero[:3])
        adv = Advantage('grpo', part_weights=dict(a=1.0, b=0.5)).of(batch)
        assert torch.allclose(adv, expected / (expected.std() + 1e-4))

    def test_in_a_run(self):

        def scored(sample):
            """Parts of another scale than the reward."""
            parts = dict(answer=torch.tensor([0., 1., 0., 0.]), format=torch.tensor([0., .1, .2, .3]))
            sample['reward_parts'] = dict(parts, solved=torch.zeros(4))
            sample['reward'] = torch.zeros_like(sample['reward'])
            sample['reward'][:, -1] = parts['answer'] + 0.5 * parts['format']

        options = dict(adv_method='grpo', reward_aggregation='normalize_then_sum')
        _, metrics, by_part = learn(scored, **options)
        assert token_policy(**options).advantage.part_weights == dict(answer=1.0, format=0.5, solved=0.5)
        assert math.isfinite(metrics['total_loss'])
        assert not torch.equal(learn(scored, adv_method='grpo')[-1], by_part)


class TestEqual:
    """Whether there is something to learn from depends on what is compared, not on the reward."""

    def batch(self, **values):
        fields = dict(
            reward=torch.tensor([[1., 0.], [0., 1.]]),
            reward_parts=dict(a=torch.tensor([1., 0.]), b=torch.tensor([0., 1.])),
        )
        return make_batch(torch.ones(2, 2), **fields | values)

    @pytest.mark.parametrize(
        'options, equal', [
            (dict(), True),
            (dict(discount_factor=0.9), False),
            (dict(compare='return_to_go'), False),
            (dict(compare='return_to_go_by_step'), False),
            (dict(part_weights=dict(a=1., b=1.)), False),
            (dict(part_weights=dict(a=0., b=0.)), True),
        ],
        ids=str
    )
    def test_by_hand(self, options, equal):
        assert Advantage('grpo', **options).equal(self.batch()) == equal

    @pytest.mark.parametrize('failed, equal', [([False, False], False), ([False, True], True), ([True, True], True)])
    def test_of_rows_that_could_be_scored(self, failed, equal):
        batch = self.batch(reward=torch.tensor([[0., 1.], [0., 2.]]), failed=torch.tensor(failed))
        assert Advantage('grpo').equal(batch) == equal

    @pytest.mark.parametrize(
        'method, options, rewards, equal',
        [
            ('pass_k', dict(), [1., 1., 0., 0.], True),  # the best two are equal
            ('pass_k', dict(compare='return_to_go'), [1., 1., 0., 0.], True),
            ('pass_k', dict(discount_factor=0.9), [0.5, 1., 0., 0.5], False),
            ('max_rl', dict(), [1., 0.], False),
            ('max_rl', dict(), [-3., 1.], True),  # the mean is not positive: every advantage is 0
            ('gpg', dict(), [1., 1.], True),
            ('reinforce_plus_plus', dict(), [1., 1.], False),  # compared with all groups
            ('optimal_token_baseline', dict(), [1., 1.], True),
            ('optimal_token_baseline', dict(), [1., 0.], False),
        ]
    )
    def test_by_method(self, method, options, rewards, equal):
        batch = make_batch(torch.ones(len(rewards), 1), reward=torch.tensor(rewards).unsqueeze(1))
        advantage = Advantage(method, **options)
        assert advantage.equal(batch) == equal
        assert method not in ('pass_k', 'max_rl') or equal == (not advantage.of(batch).any())


class TestReference:

    @pytest.mark.parametrize('mixup', [1.0, 0.25])
    def test_is_renewed(self, mixup):
        policy = token_policy(learning_rate=1e-2, kl=dict(beta=0.1, ref_sync_freq=2, ref_sync_mixup=mixup))
        start = vector(policy.reference.parameters())
        update(policy)
        assert torch.equal(vector(policy.reference.parameters()), start)
        update(policy)
        assert torch.allclose(vector(policy.reference.parameters()), start.lerp(weights(policy), mixup))

    def test_a_checkpoint_without_one_cannot_be_resumed(self):
        state = token_policy(kl=dict(beta=0.1)).learn_mode.state_dict()
        with pytest.raises(ConfigError, match='ref_sync_freq = 2: the checkpoint contains no reference'):
            token_policy(kl=dict(beta=0.1, ref_sync_freq=2)).learn_mode.load_state_dict(state)

    def test_of_adapters_is_the_pretrained_model(self, tiny_model, tmp_path):
        pytest.importorskip('peft')
        tiny_model.save_pretrained(str(tmp_path))
        policy, other = (
            token_policy(
                dict(model=dict(lora=dict(r=4))), base=tmp_path, seed=seed, learning_rate=1e-2, kl=dict(beta=0.1)
            ) for seed in (0, 5)
        )
        kls = [update(policy)['kl'] for _ in range(4)]
        assert kls[0] == pytest.approx(0, abs=1e-6) and kls[-1] > 1e-6 and policy.reference is None
        state = policy.learn_mode.state_dict()
        assert all('lora_' in name for name in state['model'])
        other.learn_mode.load_state_dict(state)
        data = sample_groups(policy, [2, 3], reward=reward)
        assert policy.learn_mode.forward(data)['total_loss'] == other.learn_mode.forward(data)['total_loss']
