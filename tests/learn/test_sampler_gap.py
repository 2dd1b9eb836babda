"""Where arithmetic is not float32, ratios are relative to the learner's own first pass: rounding is not clipped."""
import copy

import pytest
import torch

from ding_grpo.learn.log_probs import fresh_rows
from ding_grpo.learn.metrics import sampler_gap
from dizoo_llm.envs import TokenEnv
from tests.cases import long
from tests.policies import (
    DISCRETE, PRESET, Seen, change, make_batch, reward, sample_groups, sample_steps, step_policy, token_policy
)

HALF = [dict(autocast='bfloat16'), dict(dtype='bfloat16')]
TOKENS = 24
STILL = dict(learning_rate=1e-12)


def noisy(model={}, learn={}, **collect):
    """A policy of large weights, which sampler and learner round differently."""
    model = dict(model, config=dict(hidden_size=64, num_hidden_layers=4))
    learn = dict(dict(PRESET, loss='gspo', entropy=dict(weight=0.0)), **learn)
    policy = token_policy(dict(model=model), collect, env=TokenEnv(max_new_tokens=TOKENS), **learn)
    change(policy.model, 4)
    return policy


def groups(policy):
    return sample_groups(policy, range(4), max_new_tokens=TOKENS, reward=reward)


def k3(log_ratio, weight):
    return ((log_ratio.exp() - 1 - log_ratio) * weight).sum() / weight.sum()


class TestOnPolicy:

    @pytest.mark.parametrize(
        'model, learn', [
            (HALF[0], dict(batch_groups=4)),
            long(HALF[1], dict(batch_groups=4)),
            long(HALF[0], dict(batch_groups=3, epoch_per_collect=2, micro_batch_tokens=90, **STILL)),
            (
                dict(HALF[1], gradient_checkpointing=True),
                dict(batch_groups=3, epoch_per_collect=2, micro_batch_tokens=90, **STILL)
            ),
            long(HALF[1], dict(batch_groups=2, epoch_per_collect=2, log_prob_fn='efficient_method', **STILL)),
        ],
        ids=str
    )
    def test_gspo_does_not_clip_rounding(self, model, learn):
        policy = noisy(model, learn, temperature=0.7, top_k=learn.get('micro_batch_tokens') and 8)
        sampled = groups(policy)
        for group in sampled:  # the rounding of half precision; some processors round sampling and learning alike
            group['logp_old'] += 0.01 * torch.randn(group['logp_old'].shape)
        metrics = policy.learn_mode.forward(sampled)
        assert metrics['sampler_gap_max'] > 1e-3  # there is something to clip
        assert metrics['sampler_gap_mean'] < metrics['sampler_gap_max']
        assert metrics['clipfrac'] == metrics['clipfrac_low'] == metrics['clipfrac_high'] == 0
        assert metrics['ratio_max'] == metrics['ratio_mean'] == 1 and metrics['kl_old'] == 0

    def test_what_is_read_before_a_mini_batch_has_the_parts_that_it_learns(self):
        """Its groups have another order than in the update. Other parts would be rounded differently."""
        policy = noisy(HALF[0], dict(batch_groups=4, micro_batch_tokens=150, **STILL))
        sampled = sample_groups(policy, range(8), max_new_tokens=TOKENS, reward=reward)
        parts, read = {True: [], False: []}, policy.actor.read

        def seen(model, part, *args):
            parts[torch.is_grad_enabled()].append(part.action)
            return read(model, part, *args)

        policy.actor.read = seen
        metrics = policy.learn_mode.forward(sampled)
        assert metrics['clipfrac'] == metrics['kl_old'] == 0 and metrics['ratio_max'] == 1
        of_second = [part for n, part in enumerate(parts[True]) if sum(map(len, parts[True][:n])) >= 16]
        assert len(of_second) > 2
        for part in of_second:
            assert any(part.shape == other.shape and torch.equal(part, other) for other in parts[False])

    def test_a_sampler_in_bfloat16(self):
        """Completions come from bfloat16; learning and evaluation stay in float32."""
        learn = dict(batch_groups=2, epoch_per_collect=2, **STILL)
        policy, wide = noisy(learn=learn, autocast='bfloat16'), noisy(learn=learn)
        data = groups(policy)
        assert any(not torch.equal(a['logp_old'], b['logp_old']) for a, b in zip(data, groups(wide)))
        metrics = policy.learn_mode.forward(data)
        assert metrics['sampler_gap_max'] > 1e-3
        assert metrics['ratio_max'] == pytest.approx(1, abs=1e-4) and metrics['clipfrac'] == 0
        obs = torch.tensor([1, 2, 3])
        assert torch.equal(*(p.eval_mode.forward({0: obs})[0]['action'] for p in (policy, wide)))

    @pytest.mark.parametrize('model', [HALF[0], long(HALF[1])], ids=str)
    def test_a_ratio_is_relative_to_the_weights_that_sampled(self, model):
        """Not to those of the mini-batch before: what was learned since is in the ratio."""
        policy = noisy(model, dict(batch_groups=2, learning_rate=1e-2, epoch_per_collect=2))
        data, read = groups(policy), policy.actor.read
        before, step, kls = copy.deepcopy(policy.model), policy.updater.step, []

        def measure(batch):
            with torch.no_grad():
                log_ratio = read(policy.model, batch).logp - read(before, batch).logp
            found = step(batch)
            kls.append((found['kl_old'], k3(log_ratio, batch.weight).item()))
            return found

        policy.updater.step = measure
        policy.learn_mode.forward(data)
        assert len(kls) == 4 and kls[0][0] == 0
        for found, expected in kls[1:]:
            assert expected > 1e-4 and found == pytest.approx(expected, rel=1e-4)

    @pytest.mark.parametrize('model, share', [(HALF[0], 0.5), (HALF[1], 0)], ids=str)
    def test_groups_of_older_weights_keep_the_samplers(self, model, share):
        policy = noisy(model, dict(batch_groups=4, learning_rate=1e-2))
        data = groups(policy)
        policy.learn_mode.forward(data)
        data = data if share == 0 else [*data[:2], *groups(policy)[:2]]
        step, expected = policy.updater.step, []

        def measure(batch):
            fresh = fresh_rows(batch, policy.age[1])
            assert fresh.float().mean() == share
            log_ratio = policy.read(batch).logp - batch.logp_old
            expected.append(k3(log_ratio.masked_fill(fresh | (batch.weight == 0), 0), batch.weight).item())
            return step(batch)

        policy.updater.step = measure
        metrics = policy.learn_mode.forward(data)
        assert expected[0] > 1e-4 and metrics['kl_old'] == pytest.approx(expected[0], rel=1e-4)
        assert ('sampler_gap_max' in metrics) == (share > 0)

    def test_in_float32_it_is_the_samplers(self):
        policy = noisy(learn=dict(batch_groups=2, loss='grpo'))
        data = groups(policy)
        for sample in data:
            sample['logp_old'] -= 0.5
        metrics = policy.learn_mode.forward(data)
        assert metrics['ratio_max'] > 1.6
        assert metrics['sampler_gap_mean'] == pytest.approx(0.5, abs=1e-5) == metrics['sampler_gap_max']


class TestCost:

    @pytest.mark.parametrize(
        'model, batch_size, epochs, passes', [
            (dict(), 2, 2, 4),
            long(HALF[1], 4, 3, 3),
            (HALF[1], 2, 1, 3),
            long(HALF[0], 1, 2, 11),
        ],
        ids=str
    )
    def test_one_more_forward_pass_of_all_but_the_first_mini_batch(self, model, batch_size, epochs, passes):
        policy = noisy(model, dict(batch_groups=batch_size, epoch_per_collect=epochs))
        del policy.observers['watch']  # reads some rows once more
        asked, read = [], policy.actor.read
        policy.actor.read = lambda *args, **kwargs: asked.append(1) or read(*args, **kwargs)
        data = groups(policy)
        policy.learn_mode.forward(data)
        assert len(asked) == passes
        asked.clear()
        policy.learn_mode.forward(data)  # of older weights now: there is nothing to read before
        assert len(asked) == 4 // batch_size * epochs

    @pytest.mark.parametrize('model', [dict(), HALF[0], long(HALF[1])], ids=str)
    def test_further_epochs(self, model):
        """They have the mini-batches of the first where rounding depends on what is read together, else others."""
        policy = noisy(model, dict(batch_groups=2, epoch_per_collect=6, **STILL))
        seen = Seen(policy)
        policy.learn_mode.forward(groups(policy))
        found = [tuple(p.tolist()[-4] for p in batch.prompts) for batch in seen.steps]
        assert len(found) == 12 and (len(set(found)) == 2) == bool(model)
        assert len({tuple(found[i:i + 2]) for i in range(0, 12, 2)}) > 1  # but in another order


class TestGap:

    def test_by_hand(self):
        batch = make_batch(
            torch.tensor([[1., 1.], [1., 0.], [1., 1.]]),
            logp_old=torch.tensor([[-1., -2.], [-3., -4.], [-5., -6.]]),
            sampled_after=torch.tensor([7, 7, 6]),
        )
        fresh = fresh_rows(batch, 7)
        assert fresh.tolist() == [[True], [True], [False]]
        logp = torch.tensor([[-1.5, -2.], [-2.75, 9.], [9., 9.]])  # 0.5, 0 and 0.25 away, and 2 that do not count
        assert sampler_gap(batch, logp, fresh) == (True, 0.25, 0.5)
        assert sampler_gap(batch, logp, fresh_rows(batch, 8)) == (False, 0, 0)

    def test_of_other_environments(self):
        policy = step_policy(DISCRETE, learn=dict(learning_rate=1e-2, epoch_per_collect=2, batch_steps=2))
        data = [sample_steps(policy, [3, 2], lambda row, step: float(row))]
        assert policy.learn_mode.forward(data)['sampler_gap_max'] < 1e-6
        assert 'sampler_gap_max' not in policy.learn_mode.forward(data)  # sampled by older weights
