"""What is left out, summed otherwise, or renewed on request."""
import copy
import math

import pytest
import torch

from ding_common import ConfigError
from ding_grpo.learn.advantage import Advantage
from ding_grpo.learn.metrics import repetition
from ding_grpo.rl_utils import group_advantage

from tests.policies import make_batch, make_policy, sample_groups
from tests.learn.test_grpo import reward, vector


def learn(think_answer, data=None, **changes):
    """The weights after one update on two groups, and its metrics."""
    main, create = think_answer
    main.policy.learn.update(dict(learning_rate=1e-2, entropy_weight=0.0, **changes))
    policy = make_policy(main, create)
    data = sample_groups(policy, [0, 1], reward=reward) if data is None else data(policy)
    metrics = policy.learn_mode.forward(data)
    return policy, vector(policy._model.parameters()), metrics


@pytest.mark.unittest
class TestLeftOut:

    def test_truncated_rows_stay_out_of_the_loss(self, think_answer):

        def without(policy):
            data = sample_groups(policy, [0, 1], reward=reward)
            for sample in data:
                assert 0 < sample['truncated'].sum() < 4  # some were cut
                sample['action'][sample['truncated'] == 1] = 5  # whatever they say
            return data

        _, masked, metrics = learn(think_answer, mask_truncated=True)
        _, other, _ = learn(think_answer, without, mask_truncated=True)
        _, whole, _ = learn(think_answer, mask_truncated=False)
        assert torch.equal(masked, other) and not torch.equal(masked, whole)
        assert metrics['completion_length_max'] == 6  # they are still told of

    def test_rows_that_failed_are_neither_compared_nor_learned(self, think_answer):

        def failing(value):

            def make(policy):
                data = sample_groups(policy, [0, 1], reward=reward)
                for sample in data:
                    sample['failed'][0] = 1
                    sample['reward'][0] = value
                    sample['action'][0] = int(abs(value))
                return data

            return make

        _, a, metrics = learn(think_answer, failing(0.))
        _, b, _ = learn(think_answer, failing(9.))
        assert torch.equal(a, b) and metrics['failed'] == 0.25
        assert metrics['reward_mean'] == pytest.approx(sum(reward(g, r) for g in (0, 1) for r in (1, 2, 3)) / 6)

    def test_a_group_that_failed_wholly(self, think_answer):

        def make(policy):
            data = sample_groups(policy, [0, 1], reward=reward)
            for sample in data:
                sample['failed'][:] = 1
            return data

        start = vector(make_policy(*think_answer)._model.parameters())
        policy, after, metrics = learn(think_answer, make)
        assert metrics['failed'] == 1 and metrics['optimizer_steps'] == 0
        assert torch.equal(after, start) and not any(math.isnan(value) for value in metrics.values())

    def test_the_loss_is_a_mean_of_those_that_could_be_scored(self, think_answer):

        def failing(keep):

            def make(policy):
                data = sample_groups(policy, [0], reward=lambda group, row: float(row % 2))
                data[0]['failed'][2:] = 1  # rewards 0 and 1 are left
                if keep:
                    data[0] = dict(
                        data[0],
                        reward_parts={},
                        equal=False,
                        **{
                            key: data[0][key][:2]
                            for key in
                            ('action', 'logp_old', 'weight', 'length', 'turn', 'reward', 'truncated', 'failed')
                        }
                    )
                return data

            return make

        (_, a, with_failed), (_, b, without) = (learn(think_answer, failing(keep)) for keep in (False, True))
        assert torch.equal(a, b) and with_failed['grad_norm'] == without['grad_norm'] > 0

    def test_all_cut_and_masked_moves_nothing(self, think_answer):
        main, create = think_answer
        main.policy.learn.update(learning_rate=1e-2, mask_truncated=True)
        policy = make_policy(main, create)
        policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward))  # momentum is there
        before = vector(policy._model.parameters())
        data = sample_groups(policy, [0, 1], reward=reward)
        for sample in data:
            sample['truncated'][:] = 1
        metrics = policy.learn_mode.forward(data)
        assert metrics['optimizer_steps'] == 0 and 'entropy' not in metrics
        assert torch.equal(vector(policy._model.parameters()), before)


@pytest.mark.unittest
class TestParts:

    def batch(self):
        return make_batch(
            torch.ones(4, 1),
            reward=torch.tensor([[1.], [0.], [0.5], [0.]]),
            reward_parts=dict(a=torch.tensor([1., 0., 0., 0.]), b=torch.tensor([0., float('nan'), 10., 0.])),
        )

    def test_each_part_is_compared_by_itself(self):
        adv = Advantage('grpo', part_weights=dict(a=1.0, b=0.5)).of(self.batch())
        zero = torch.zeros(4).long()
        expected = group_advantage(torch.tensor([1., 0., 0., 0.]), zero)
        of_b = 0.5 * group_advantage(torch.tensor([0., 10., 0.]), zero[:3])
        expected[[0, 2, 3]] += of_b  # the part does not apply to row 1
        assert torch.allclose(adv, expected / (expected.std() + 1e-4))

    def test_in_a_run(self, think_answer):
        options = dict(adv_method='grpo')
        _, summed, _ = learn(think_answer, data=self.scored, **options)
        options['reward_aggregation'] = 'normalize_then_sum'
        policy, by_part, metrics = learn(think_answer, data=self.scored, **options)
        assert policy._advantage.part_weights == dict(answer=1.0, format=0.5, solved=0.5)
        assert not torch.equal(summed, by_part) and math.isfinite(metrics['total_loss'])

    @pytest.mark.parametrize(
        'learn, collect, message', [
            (dict(adv_method='no_std'), {}, "policy.learn.adv_method = 'grpo', not 'no_std'"),
            (dict(loss='dr_grpo'), {}, "policy.learn.adv_method = 'grpo', not 'no_std'"),
            (dict(advantage='return_to_go'), {}, "policy.learn.advantage = 'outcome', not 'return_to_go'"),
            (dict(), dict(discount_factor=0.9), 'policy.collect.discount_factor = 1, not 0.9'),
        ],
        ids=str
    )
    def test_what_would_change_nothing_is_refused(self, think_answer, learn, collect, message):
        main, create = think_answer
        main.policy.learn.update(dict(dict(adv_method='grpo'), reward_aggregation='normalize_then_sum'))
        if 'loss' in learn:
            main.policy.learn.adv_method = None
        main.policy.learn.update(learn)
        main.policy.collect.update(collect)
        with pytest.raises(ConfigError, match=message):
            make_policy(main, create)

    @staticmethod
    def scored(policy):
        """Parts of another scale than the reward."""
        data = sample_groups(policy, [0, 1], reward=reward)
        for sample in data:
            parts = dict(answer=torch.tensor([0., 1., 0., 0.]), format=torch.tensor([0., .1, .2, .3]))
            sample['reward_parts'] = dict(parts, solved=torch.zeros(4))
            sample['reward'] = torch.zeros_like(sample['reward'])
            sample['reward'][:, -1] = parts['answer'] + 0.5 * parts['format']
        return data


@pytest.mark.unittest
class TestEqual:
    """Whether there is something to learn from is asked of what is compared, not of the reward."""

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

    @pytest.mark.parametrize(
        'rewards, equal',
        [((1., 1., 0., 0.), True), ((1., 0., 0., 0.), False), ((0.5, 1., 0., 0.5), False), ((1., 1., 1., 1.), True)]
    )
    @pytest.mark.parametrize('options', [dict(), dict(discount_factor=0.9), dict(compare='return_to_go')], ids=str)
    def test_a_group_whose_best_two_are_equal_teaches_pass_k_nothing(self, options, rewards, equal):
        batch = make_batch(torch.ones(4, 1), reward=torch.tensor(rewards).unsqueeze(1))
        advantage = Advantage('pass_k', **options)
        assert advantage.equal(batch) == equal == (not advantage.of(batch).any())

    def test_groups_without_a_best_row_are_dropped(self, think_answer):
        rewards = ((1., 1., 0., 0.), (1., 0., 0., 0.))
        _, _, metrics = learn(
            think_answer,
            lambda policy: sample_groups(policy, [0, 1], reward=lambda group, row: rewards[group][row]),
            adv_method='pass_k',
            drop_equal_groups=True
        )
        assert metrics['equal_groups'] == 0.5

    def test_of_rows_that_could_be_scored(self):
        reward = torch.tensor([[0., 1.], [0., 2.]])
        assert not Advantage('grpo').equal(self.batch(reward=reward))
        assert Advantage('grpo').equal(self.batch(reward=reward, failed=torch.tensor([False, True])))
        assert Advantage('grpo').equal(self.batch(reward=reward, failed=torch.tensor([True, True])))


@pytest.mark.unittest
class TestReference:

    @pytest.mark.parametrize('mixup', [1.0, 0.25])
    def test_is_renewed(self, think_answer, mixup):
        main, create = think_answer
        main.policy.learn.update(beta=0.1, learning_rate=1e-2, ref_sync_freq=2, ref_sync_mixup=mixup)
        policy = make_policy(main, create)
        start = vector(policy._learning.reference.copy.parameters())
        data = sample_groups(policy, [0, 1], reward=reward)
        policy.learn_mode.forward(data)
        assert torch.equal(vector(policy._learning.reference.copy.parameters()), start)
        policy.learn_mode.forward(data)
        expected = start.lerp(vector(policy._model.parameters()), mixup)
        assert torch.allclose(vector(policy._learning.reference.copy.parameters()), expected)

    def test_resumed_it_goes_on(self, think_answer):
        main, create = think_answer
        main.policy.learn.update(beta=0.1, learning_rate=1e-2, ref_sync_freq=2)
        policy = make_policy(main, create)
        data = sample_groups(policy, [0, 1], reward=reward)
        for _ in range(3):
            policy.learn_mode.forward(data)
        resumed = make_policy(main, create, seed=5)
        resumed.learn_mode.load_state_dict(copy.deepcopy(policy.learn_mode.state_dict()))
        kl = [[p.learn_mode.forward(data)['kl'] for _ in range(4)] for p in (policy, resumed)]
        assert kl[0] == kl[1] and kl[0][1] == pytest.approx(0, abs=1e-7) != kl[0][0]
        main.policy.learn.ref_sync_freq = None
        state = make_policy(main, create).learn_mode.state_dict()
        with pytest.raises(ConfigError, match='ref_sync_freq = 2: the checkpoint contains no reference'):
            policy.learn_mode.load_state_dict(state)

    def test_there_must_be_one(self, think_answer):
        main, create = think_answer
        main.policy.learn.update(beta=0.0, ref_sync_freq=2)
        with pytest.raises(ConfigError, match='policy.learn.ref_sync_freq = 2: there is no reference'):
            make_policy(main, create)

    def test_of_adapters_is_the_pretrained_model(self, think_answer, tiny_model, tmp_path):
        pytest.importorskip('peft')
        tiny_model.save_pretrained(str(tmp_path / 'base'))
        main, create = think_answer
        main.policy.model = dict(pretrained=str(tmp_path / 'base'), lora=dict(r=4))
        main.policy.learn.update(beta=0.1, learning_rate=1e-2)
        policy = make_policy(main, create)
        base = {n: p.clone() for n, p in policy._model.named_parameters() if not p.requires_grad}
        kls = [policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward))['kl'] for _ in range(4)]
        assert kls[0] == pytest.approx(0, abs=1e-6) and kls[-1] > 1e-6 and policy._learning.reference.copy is None
        assert all(torch.equal(p, base[n]) for n, p in policy._model.named_parameters() if n in base)
        state = policy.learn_mode.state_dict()
        assert all('lora_' in name for name in state['model'])
        other = make_policy(main, create, seed=5)
        other.learn_mode.load_state_dict(state)
        data = sample_groups(policy, [2, 3], reward=reward)
        assert policy.learn_mode.forward(data)['total_loss'] == other.learn_mode.forward(data)['total_loss']


@pytest.mark.unittest
def test_repetition_by_hand():
    action = torch.tensor([[1, 2, 1, 2, 1, 2], [1, 1, 1, 1, 1, 1], [1, 2, 3, 4, 5, 6], [1, 2, 0, 0, 0, 0]])
    weight = torch.ones(4, 6)
    weight[3, 2:] = 0
    # pairs 12 21 12 21 12: three of five were there before; 11 five times: four; none; one pair alone
    assert torch.allclose(repetition(action, weight, 2), torch.tensor([0.6, 0.8, 0., 0.]))
