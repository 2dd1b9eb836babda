"""What an update learns: the gradient, the reference, and every option of the loss."""
import copy
import functools

import pytest
import torch

from ding_grpo.rl_utils import LOSS_PRESETS, group_advantage
from tests.cases import long
from tests.policies import (
    PRESET, Seen, change, gradient, reward, same_reward, sample_groups, token_policy, update, vector, weights
)


def moved(factor=1.3, **options):
    """A policy whose reference differs from it, so that the KL is not 0."""
    policy = token_policy(**options)
    change(policy.reference, factor)
    return policy


def test_gradient_computed_independently():
    """Minus the mean of (adv + beta * (pi_ref / pi - 1)) * grad log pi, each row read alone by plain transformers."""
    sampling = dict(temperature=0.9, top_k=12, top_p=0.8)
    policy = moved(1.1, collect=sampling, grad_clip_value=1e9, kl=dict(beta=0.3), entropy=dict(weight=0.0))
    data = sample_groups(policy, reward=reward)
    lm = copy.deepcopy(policy.model.lm)
    policy.learn_mode.forward(copy.deepcopy(data))

    def log_prob(model, sample, row):
        n = int(sample['weight'][row].sum())
        action = sample['action'][row, :n]
        logit = model(torch.cat([sample['prompt'], action])[None]).logits[0, len(sample['prompt']) - 1:-1]
        allowed = torch.zeros_like(logit).bool()
        for t, kept in enumerate(sample['kept'][row, :n]):
            allowed[t, kept[kept >= 0]] = True
        logit = (logit / 0.9).masked_fill(~allowed, float('-inf'))
        return logit.log_softmax(-1)[torch.arange(n), action]

    total, rows = 0., 0
    for sample in data:
        adv = group_advantage(sample['reward'].sum(1), torch.zeros(len(sample['action'])).long(), 'no_std')
        for row in range(len(sample['action'])):
            logp = log_prob(lm, sample, row)
            with torch.no_grad():
                ratio = (log_prob(policy.reference.lm, sample, row) - logp).exp()
            total = total - ((adv[row] + 0.3 * (ratio - 1)) * logp).mean()
            rows += 1
    (total / rows).backward()
    expected = vector(p.grad for p in lm.parameters())
    assert expected.norm() > 1e-3 and (gradient(policy) - expected).norm() < 1e-4 * expected.norm()


class TestReference:

    def test_without_beta_none_is_kept(self):
        policy = token_policy()
        assert policy.learning.reference is None and 'kl' not in policy.learn_mode.monitor_vars()

    def test_is_a_frozen_copy_of_the_start(self, tiny_model):
        # The tutorial notebook's reference is a second random model: its KL is large from the first update on.
        start = vector(tiny_model.parameters())
        policy = token_policy(model=tiny_model, kl=dict(beta=0.1))
        assert update(policy)['kl'] == pytest.approx(0, abs=1e-6)
        assert torch.equal(vector(policy.reference.parameters()), start) and not torch.equal(weights(policy), start)
        assert not any(p.requires_grad for p in policy.reference.parameters())
        assert not any('reference' in key for key in policy.learn_mode.state_dict())

    def test_has_the_tokenizers_vocabulary_too(self):
        # the model has more than the tokenizer's 32
        policy = token_policy(policy=dict(model=dict(config=dict(vocab_size=48))), kl=dict(beta=0.1))
        assert update(policy)['kl'] == pytest.approx(0, abs=1e-6)

    def test_is_read_once_however_many_epochs(self):

        def reads(epochs):
            policy, found = token_policy(epoch_per_collect=epochs, batch_groups=1, kl=dict(beta=0.1)), []
            policy.reference.trunk.register_forward_hook(lambda *args: found.append(1))
            update(policy, [0, 1, 2])
            return len(found)

        assert reads(4) == reads(1) > 0


def learned_with(options):
    """The weights after two updates of a small policy with these options."""
    learn = dict(
        PRESET,
        learning_rate=1e-2,
        epoch_per_collect=3,
        adv_method='no_std',
        kl=dict(beta=0.1),
        entropy=dict(weight=0.0)
    )
    policy = token_policy(**dict(learn, **options))
    data = sample_groups(policy, reward=reward)
    for _ in range(2):
        policy.learn_mode.forward(data)
    return weights(policy)


@functools.cache
def learned_without_options():
    return learned_with({})


@pytest.mark.parametrize(
    'key, value', [
        ('clip', dict(ratio=0.01)),
        ('kl', dict(type='k1')),
        ('clip', dict(ratio_high=0.01)),
        ('clip', dict(delta=1.21)),
        ('ratio', 'sequence'),
        ('surrogate', 'sapo'),
        ('surrogate_options', dict(dual_clip=1.01)),
        ('reduction', 'token'),
        ('reduction', 'constant'),
        ('kl', dict(ratio_correction=True)),
        ('loss', 'dapo'),
        *(long('loss', name) for name in LOSS_PRESETS if name not in ('grpo', 'dapo')),
        ('kl', dict(beta=0.5)),
        ('weight_decay', 0.5),
        ('entropy', dict(weight=0.5)),
        ('learning_rate', 1e-4),
        ('grad_clip_value', 1e-6),
        ('adv_method', 'grpo'),
        *(long('adv_method', name) for name in ('max_rl', 'reinforce_plus_plus', 'optimal_token_baseline')),
        long('lr_scheduler', dict(type='linear', num_warmup_steps=3, num_training_steps=9)),
        ('lr_scheduler', dict(type='cosine_with_min_lr', num_training_steps=4, specific=dict(min_lr_rate=0.9))),
    ]
)
def test_every_option_of_the_config_changes_what_is_learned(key, value):
    assert not torch.equal(learned_with({key: value}), learned_without_options())


class TestLearn:

    def test_constant_reduction_divides_by_the_environments_length_limit(self):
        policy = moved(reduction='constant', entropy=dict(weight=0.0), kl=dict(beta=0.1))
        data = sample_groups(policy, reward=same_reward)  # no advantage: the loss is the KL's
        tokens = sum(sample['weight'].sum().item() for sample in data)
        metrics = policy.learn_mode.forward(data)
        # sum over tokens of beta k3, over 8 rows of 6 tokens at most
        assert metrics['policy_loss'] == pytest.approx(0.1 * metrics['kl'] * tokens / (8 * 6), rel=1e-4)

    @pytest.mark.parametrize(
        'name, sampling, entropy_weight', [
            ('efficient_method', dict(temperature=0.7), 0.1),
            ('efficient_method', dict(top_k=5, top_p=0.9), 0.),
            ('naive_method', dict(top_k=5, top_p=0.9), 0.1),
            ('less_efficient_method', dict(temperature=0.7), 0.),
        ]
    )
    def test_from_hidden_states_or_from_logits_the_same_is_learned(self, name, sampling, entropy_weight):
        learned = []
        for method in ('linear_log_prob', name):
            learn = dict(learning_rate=1e-3, log_prob_fn=method, kl=dict(beta=0.1), entropy=dict(weight=entropy_weight))
            policy = token_policy(collect=sampling, **learn)
            learned.append((update(policy, reward=None), gradient(policy)))
        (one, first), (two, second) = learned  # gradients: AdamW's step magnifies those of rounding alone
        assert first.norm() > 1e-2 and torch.allclose(first, second, rtol=0, atol=1e-7)
        for key in ('total_loss', 'kl', 'entropy', 'grad_norm', 'ratio_max'):
            assert one[key] == pytest.approx(two[key], rel=1e-4, abs=1e-6), key

    def test_every_monitored_variable_is_there_and_a_float(self):
        policy = token_policy(kl=dict(beta=0.1))
        metrics, monitored = update(policy, reward=None), set(policy.learn_mode.monitor_vars())
        assert monitored <= set(metrics) and all(type(value) is float for value in metrics.values())
        names = {'skipped_steps', 'empty_steps', 'sampler_gap_mean', 'sampler_gap_max'}
        assert names <= monitored and metrics['skipped_steps'] == metrics['empty_steps'] == 0

    def test_equal_groups_are_dropped_on_request(self):
        policy = token_policy(drop_equal_groups=True, batch_groups=1)
        seen = Seen(policy)
        metrics = update(policy, reward=lambda group, row: float(group == 0 and row == 0))
        assert [len(batch) for batch in seen.steps] == [4] and metrics['equal_groups'] == 0.5
        start = weights(policy)
        metrics = update(policy, reward=same_reward)
        assert len(seen.steps) == 1 and metrics['equal_groups'] == 1 and torch.equal(weights(policy), start)
        assert not {'total_loss', 'entropy'} & set(metrics)  # nothing was learned: neither 0 nor NaN

    def test_entropy_bonus_raises_the_entropy(self):
        entropies = {}
        for weight in (0.0, 1.0):
            policy = token_policy(learning_rate=1e-3, entropy=dict(weight=weight))
            with torch.no_grad():
                policy.model.lm.lm_head.weight.mul_(30)  # far from uniform
            data = sample_groups(policy, reward=same_reward)  # nothing to learn but entropy
            entropies[weight] = [policy.learn_mode.forward(data)['entropy'] for _ in range(5)]
        assert entropies[0.0][-1] == pytest.approx(entropies[0.0][0])
        assert entropies[1.0][-1] > entropies[1.0][0] + 0.05
