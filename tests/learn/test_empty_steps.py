"""A step without a gradient moves nothing: neither AdamW's momentum nor its weight decay."""
import copy

import pytest
import torch

from ding_grpo.learn.advantage import Advantage
from ding_grpo.rl_utils import LOSS_PRESETS

from tests.policies import make_batch, make_policy, sample_groups
from tests.learn.test_grpo import reward, vector
from tests.learn.test_numbers import equal, state, wrong_reward
from tests.act.test_step_actor import DISCRETE, make, sample_group


def with_momentum(think_answer, **learn):
    """A policy after one step of the optimizer."""
    main, create = copy.deepcopy(think_answer)
    main.policy.learn.update(dict(dict(learning_rate=1e-2, entropy_weight=0.0, weight_decay=0.1), **learn))
    policy = make_policy(main, create)
    assert policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward))['optimizer_steps'] > 0
    return policy


def same(group, row):
    return 1.


@pytest.mark.unittest
class TestEmptySteps:

    @pytest.mark.parametrize(
        'loss, options', [
            *((name, {}) for name in LOSS_PRESETS if name != 'dro'),
            *((name, dict(micro_batch_tokens=30)) for name in ('grpo', 'dapo', 'gspo', 'clip_cov')),
            ('grpo', dict(log_prob_fn='efficient_method')),
        ],
        ids=str
    )
    def test_equal_rewards_move_nothing(self, think_answer, loss, options):
        policy = with_momentum(think_answer, loss=loss, adv_method=None, clip_ratio=None, **options)
        before = state(policy)
        metrics = policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=same))
        assert equal(state(policy), before)
        assert (metrics['optimizer_steps'], metrics['empty_steps'], metrics['skipped_steps']) == (0, 1, 0)
        assert metrics['grad_norm'] == 0 and metrics['entropy'] > 0  # what was read is told

    @pytest.mark.parametrize('learn', [dict(beta=0.1), dict(entropy_weight=0.01), dict(loss='dro')], ids=str)
    def test_kl_and_entropy_are_gradients_too(self, think_answer, learn):
        policy = with_momentum(think_answer, **learn)
        before = vector(policy._model.parameters())
        metrics = policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=same))
        assert (metrics['optimizer_steps'], metrics['empty_steps']) == (1, 0)
        assert not torch.equal(vector(policy._model.parameters()), before)

    def test_other_mini_batches_are_learned(self, think_answer):

        def of_one(group, row):
            return float(group == 0 and row == 0)

        policy = with_momentum(think_answer, batch_size=1, epoch_per_collect=3)
        alone = with_momentum(think_answer, batch_size=1, epoch_per_collect=3)
        metrics = policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=of_one))
        assert (metrics['optimizer_steps'], metrics['empty_steps']) == (3, 3)
        alone.learn_mode.forward(sample_groups(alone, [0], reward=of_one))
        assert torch.equal(vector(policy._model.parameters()), vector(alone._model.parameters()))

    def test_where_every_ratio_is_clipped(self, think_answer):
        policy = with_momentum(think_answer, clip_ratio=0.2)
        data = sample_groups(policy, [0, 1], reward=reward)
        for sample in data:
            returns = sample['reward'].sum(1)
            sample['logp_old'] -= (returns - returns.mean()).sign().unsqueeze(1)  # each further on its way than allowed
        before = state(policy)
        metrics = policy.learn_mode.forward(data)
        assert metrics['clipfrac'] > 0.5 and metrics['empty_steps'] == 1 and equal(state(policy), before)

    def test_masked_rows_are_no_gradient(self, think_answer):
        policy = with_momentum(think_answer, mask_truncated=True, batch_size=1)
        data = sample_groups(policy, [0, 1], reward=reward)
        data[0]['truncated'][:], data[1]['truncated'][:] = 1, 0
        metrics = policy.learn_mode.forward(data)
        assert (metrics['optimizer_steps'], metrics['empty_steps']) == (1, 1)

    def test_does_not_end_the_epochs_as_target_kl_does(self, think_answer):
        policy = with_momentum(think_answer, epoch_per_collect=4, target_kl=1e9)
        assert policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=same))['empty_steps'] == 4
        further = with_momentum(think_answer, epoch_per_collect=4, target_kl=0.01)
        data = sample_groups(further, [0, 1], reward=same)
        for sample in data:
            sample['logp_old'] -= 1
        metrics = further.learn_mode.forward(data)
        assert (metrics['optimizer_steps'], metrics['empty_steps']) == (0, 0)

    def test_ends_a_row_of_bad_updates(self, think_answer):
        policy = with_momentum(think_answer, max_bad_updates=2)
        for _ in range(3):
            bad = sample_groups(policy, [0, 1], reward=reward)
            wrong_reward(policy, bad)
            assert policy.learn_mode.forward(bad)['skipped_steps'] == 1
            assert policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=same))['empty_steps'] == 1

    def test_is_monitored(self, think_answer):
        policy = with_momentum(think_answer)
        assert 'empty_steps' in policy.learn_mode.monitor_vars()
        assert policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward))['empty_steps'] == 0

    @pytest.mark.parametrize('learn', [dict(), dict(batch_steps=2), dict(advantage='return_to_go')], ids=str)
    def test_steps_of_other_environments(self, learn):
        policy = make(DISCRETE, learn=dict(learning_rate=1e-2, **learn))
        policy.learn_mode.forward([sample_group(policy, [3, 3], lambda row, step: float(row))])
        before = state(policy)
        # outcomes are equal, and with 'return_to_go' every step's return is
        metrics = policy.learn_mode.forward([sample_group(policy, [3, 3], lambda row, step: float(step == 2))])
        assert metrics['empty_steps'] == (3 if 'batch_steps' in learn else 1) and metrics['optimizer_steps'] == 0
        assert equal(state(policy), before)


@pytest.mark.unittest
@pytest.mark.parametrize('reward', [1., 0.1, -0.37, 0.7])
@pytest.mark.parametrize('discount', [0.9, 0.97, 0.98, 0.993, 0.997, 0.999])
def test_rounding_makes_no_advantage_of_equal_returns(reward, discount):
    """Episodes that a time limit cut and that go on for ever have one return at all steps: r / (1 - discount). Sums in
    float32 were one unit apart, and divided by their deviation up to 1.9."""
    cut = torch.ones(4, dtype=torch.bool)
    batch = make_batch(torch.ones(4, 500), reward=torch.full((4, 500), reward), truncated=cut)
    advantage = Advantage('grpo', 'return_to_go', discount, extend_truncated=True)
    assert not advantage.of(batch).any() and advantage.equal(batch)
