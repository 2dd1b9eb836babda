"""A step without a gradient moves nothing: neither AdamW's momentum nor its weight decay."""
import pytest
import torch

from ding_grpo.learn.advantage import Advantage
from ding_grpo.rl_utils import LOSS_PRESETS
from tests.cases import long
from tests.policies import (
    DISCRETE, PRESET, make_batch, reward, same_reward, sample_groups, sample_steps, state, step_policy, token_policy,
    update, weights
)
from tests.same import same


def with_momentum(**learn):
    """A policy after one step of the optimizer."""
    policy = token_policy(**dict(dict(learning_rate=1e-2, weight_decay=0.1, entropy=dict(weight=0.0)), **learn))
    assert update(policy)['optimizer_steps'] > 0
    return policy


def steps(metrics):
    return metrics['optimizer_steps'], metrics['empty_steps']


@pytest.mark.parametrize(
    'loss, options', [
        ('grpo', {}),
        ('clip_cov', {}),
        ('gspo', dict(micro_batch_tokens=30)),
        ('grpo', dict(log_prob_fn='efficient_method')),
        *(long(name, {}) for name in LOSS_PRESETS if name not in ('grpo', 'clip_cov', 'dro')),
        *(long(name, dict(micro_batch_tokens=30)) for name in ('grpo', 'dapo', 'clip_cov')),
    ],
    ids=str
)
def test_equal_rewards_move_nothing(loss, options):
    policy = with_momentum(**PRESET, loss=loss, **options)
    before = state(policy)
    metrics = update(policy, reward=same_reward)
    same(state(policy), before)
    assert steps(metrics) == (0, 1) and metrics['skipped_steps'] == 0
    assert metrics['grad_norm'] == 0 and metrics['entropy'] > 0  # metrics of what was read


@pytest.mark.parametrize('learn', [dict(kl=dict(beta=0.1)), dict(entropy=dict(weight=0.01)), dict(loss='dro')], ids=str)
def test_kl_and_entropy_are_gradients_too(learn):
    policy = with_momentum(**learn)
    before = weights(policy)
    assert steps(update(policy, reward=same_reward)) == (1, 0)
    assert not torch.equal(weights(policy), before)


def test_other_mini_batches_are_learned():

    def of_one(group, row):
        return float(group == 0 and row == 0)

    policy, alone = (with_momentum(batch_groups=1, epoch_per_collect=3) for _ in range(2))
    assert steps(update(policy, reward=of_one)) == (3, 3)
    update(alone, [0], of_one)
    assert torch.equal(weights(policy), weights(alone))


def test_where_every_ratio_is_clipped():
    policy = with_momentum(clip=dict(ratio=0.2))
    data = sample_groups(policy, reward=reward)
    for sample in data:
        returns = sample['reward'].sum(1)
        sample['logp_old'] -= (returns - returns.mean()).sign().unsqueeze(1)  # each further on its way than allowed
    before = state(policy)
    metrics = policy.learn_mode.forward(data)
    assert metrics['clipfrac'] > 0.5 and metrics['empty_steps'] == 1
    same(state(policy), before)


def test_masked_rows_are_no_gradient():
    policy = with_momentum(mask_truncated=True, batch_groups=1)
    data = sample_groups(policy, reward=reward)
    data[0]['truncated'][:], data[1]['truncated'][:] = 1, 0
    assert steps(policy.learn_mode.forward(data)) == (1, 1)
    before = state(policy)
    data[1]['truncated'][:] = 1
    metrics = policy.learn_mode.forward(data)
    assert steps(metrics) == (0, 2) and 'entropy' not in metrics
    same(state(policy), before)


def test_does_not_end_the_epochs_as_target_kl_does():
    policy = with_momentum(epoch_per_collect=4, target_kl=1e9)
    assert update(policy, reward=same_reward)['empty_steps'] == 4
    further = with_momentum(epoch_per_collect=4, target_kl=0.01)
    data = sample_groups(further, reward=same_reward)
    for sample in data:
        sample['logp_old'] -= 1
    assert steps(further.learn_mode.forward(data)) == (0, 0)


@pytest.mark.parametrize('learn', [dict(), dict(batch_steps=2), dict(advantage='return_to_go')], ids=str)
def test_steps_of_other_environments(learn):
    policy = step_policy(DISCRETE, learn=dict(learning_rate=1e-2, **learn))
    policy.learn_mode.forward([sample_steps(policy, [3, 3], lambda row, step: float(row))])
    before = state(policy)
    # outcomes are equal, and with 'return_to_go' every step's return is
    metrics = policy.learn_mode.forward([sample_steps(policy, [3, 3], lambda row, step: float(step == 2))])
    assert steps(metrics) == (0, 3 if 'batch_steps' in learn else 1)
    same(state(policy), before)


@pytest.mark.parametrize('reward', [1., 0.1, -0.37, 0.7])
@pytest.mark.parametrize('discount', [0.9, 0.97, 0.98, 0.993, 0.997, 0.999])
def test_rounding_makes_no_advantage_of_equal_returns(reward, discount):
    """Episodes that a time limit cut and that go on for ever have one return at all steps: r / (1 - discount). Sums in
    float32 were one unit apart, and divided by their deviation up to 1.9."""
    cut = torch.ones(4, dtype=torch.bool)
    batch = make_batch(torch.ones(4, 500), reward=torch.full((4, 500), reward), truncated=cut)
    advantage = Advantage('grpo', 'return_to_go', discount, extend_truncated=True)
    assert not advantage.of(batch).any() and advantage.equal(batch)
