"""Where arithmetic is not float32, ratios are relative to the learner's own first pass: rounding is not clipped."""
import copy

import pytest
import torch

from ding_grpo.learn.log_probs import fresh_rows
from ding_grpo.learn.metrics import sampler_gap
from dizoo_llm.envs import TokenEnv
from tests.cases import long

from tests.policies import make_batch, make_policy, sample_groups
from tests.learn.test_grpo import reward, vector
from tests.act.test_step_actor import DISCRETE, make, sample_group

HALF = [dict(autocast='bfloat16'), dict(dtype='bfloat16')]
TOKENS = 24


def noisy(think_answer, model, learn=dict(), **collect):
    """A policy of large weights, which sampler and learner round differently."""
    main, create = copy.deepcopy(think_answer)
    main.policy.model.update(model)
    main.policy.model.config.update(hidden_size=64, num_hidden_layers=4)
    main.policy.learn.update(dict(dict(loss='gspo', adv_method=None, clip_ratio=None, entropy_weight=0.0), **learn))
    main.policy.collect.update(collect)
    policy = make_policy(main, create, env=TokenEnv(max_new_tokens=TOKENS))
    with torch.no_grad():
        for p in policy._model.parameters():
            if p.dim() > 1:
                p.mul_(4)
    return policy


def groups(policy, number=4):
    return sample_groups(policy, range(number), max_new_tokens=TOKENS, reward=reward)


@pytest.mark.unittest
class TestOnPolicy:

    @pytest.mark.parametrize(
        'learn', [
            dict(batch_size=4),
            long(dict(batch_size=4, epoch_per_collect=2, learning_rate=1e-12)),
            long(dict(batch_size=2, learning_rate=1e-12)),
            long(dict(batch_size=2, epoch_per_collect=2, learning_rate=1e-12)),
            dict(batch_size=3, epoch_per_collect=2, learning_rate=1e-12, micro_batch_tokens=90, entropy_weight=0.01),
            dict(batch_size=2, epoch_per_collect=2, learning_rate=1e-12, log_prob_fn='efficient_method'),
        ],
        ids=str
    )
    @pytest.mark.parametrize('model', HALF, ids=str)
    def test_gspo_does_not_clip_rounding(self, think_answer, model, learn):
        policy = noisy(think_answer, model, learn, temperature=0.7, top_k=learn.get('micro_batch_tokens') and 8)
        sampled = groups(policy)
        for group in sampled:  # the rounding of half precision; some processors round sampling and learning alike
            group['logp_old'] += 0.01 * torch.randn(group['logp_old'].shape)
        metrics = policy.learn_mode.forward(sampled)
        assert metrics['sampler_gap_max'] > 1e-3  # there is something to clip
        assert metrics['sampler_gap_mean'] < metrics['sampler_gap_max']
        assert metrics['clipfrac'] == metrics['clipfrac_low'] == metrics['clipfrac_high'] == 0
        assert metrics['ratio_max'] == metrics['ratio_mean'] == 1 and metrics['kl_old'] == 0

    def test_layers_that_are_computed_again(self, think_answer):
        policy = noisy(think_answer, dict(dtype='bfloat16', gradient_checkpointing=True), dict(batch_size=2))
        assert policy.learn_mode.forward(groups(policy, 2))['ratio_max'] == 1

    @pytest.mark.parametrize('model', HALF, ids=str)
    def test_adapters(self, think_answer, tiny_model, tmp_path, model):
        pytest.importorskip('peft')
        tiny_model.save_pretrained(str(tmp_path / 'base'))
        main, create = think_answer
        main.policy.model = dict(pretrained=str(tmp_path / 'base'), lora=dict(r=4), **model)
        main.policy.learn.update(batch_size=1, epoch_per_collect=2, learning_rate=1e-12, beta=0.1)
        policy = make_policy(main, create)
        metrics = policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward))
        assert metrics['ratio_max'] == 1 and metrics['sampler_gap_max'] > 0

    @pytest.mark.parametrize('batch_size', [4, 2])
    def test_a_sampler_in_bfloat16(self, think_answer, batch_size):
        """Completions come from bfloat16; learning and evaluation stay in float32."""
        learn = dict(batch_size=batch_size, learning_rate=1e-12, epoch_per_collect=2)
        policy = noisy(think_answer, dict(), learn, autocast='bfloat16')
        wide = noisy(think_answer, dict(), learn)
        data = groups(policy)
        assert any(not torch.equal(a['logp_old'], b['logp_old']) for a, b in zip(data, groups(wide)))
        metrics = policy.learn_mode.forward(data)
        assert metrics['sampler_gap_max'] > 1e-3
        assert metrics['ratio_max'] == pytest.approx(1, abs=1e-4) and metrics['clipfrac'] == 0
        greedy, of_wide = (p._actor.greedy({0: torch.tensor([1, 2, 3])})[0]['action'] for p in (policy, wide))
        assert torch.equal(greedy, of_wide)

    @pytest.mark.parametrize('model', HALF, ids=str)
    def test_a_ratio_is_relative_to_the_weights_that_sampled(self, think_answer, model):
        """Not to those of the mini-batch before: what was learned since is in the ratio."""
        policy = noisy(think_answer, model, dict(batch_size=2, learning_rate=1e-2, epoch_per_collect=2))
        data, read = groups(policy), policy._actor.read
        before, update, kls = copy.deepcopy(policy._model), policy._learning.updater.step, []

        def measure(batch):
            with torch.no_grad():
                log_ratio = read(policy._model, batch)[0] - read(before, batch)[0]
            kl = ((log_ratio.exp() - 1 - log_ratio) * batch.weight).sum() / batch.weight.sum()
            step = update(batch)
            kls.append((step['kl_old'], kl.item()))
            return step

        policy._learning.updater.step = measure
        policy.learn_mode.forward(data)
        assert len(kls) == 4 and kls[0][0] == 0
        for found, expected in kls[1:]:
            assert expected > 1e-4 and found == pytest.approx(expected, rel=1e-4)

    @pytest.mark.parametrize('share', [0, 0.5])
    @pytest.mark.parametrize('model', HALF, ids=str)
    def test_groups_of_older_weights_keep_the_samplers(self, think_answer, model, share):
        policy = noisy(think_answer, model, dict(batch_size=4, learning_rate=1e-2))
        data = groups(policy)
        policy.learn_mode.forward(data)
        data = data if share == 0 else [*data[:2], *groups(policy)[:2]]
        update, expected = policy._learning.updater.step, []

        def measure(batch):
            fresh = fresh_rows(batch, policy._learning.updater.optimizer_steps)
            assert fresh.float().mean() == share
            with torch.no_grad():
                log_ratio = policy._actor.read(policy._model, batch)[0] - batch.logp_old
            log_ratio = log_ratio.masked_fill(fresh | (batch.weight == 0), 0)
            expected.append(((log_ratio.exp() - 1 - log_ratio).sum() / batch.weight.sum()).item())
            return update(batch)

        policy._learning.updater.step = measure
        metrics = policy.learn_mode.forward(data)
        assert expected[0] > 1e-4 and metrics['kl_old'] == pytest.approx(expected[0], rel=1e-4)
        assert ('sampler_gap_max' in metrics) == (share > 0)

    def test_in_float32_it_is_the_samplers(self, think_answer):
        policy = noisy(think_answer, dict(), dict(batch_size=2, loss='grpo'))
        data = groups(policy)
        for sample in data:
            sample['logp_old'] -= 0.5
        metrics = policy.learn_mode.forward(data)
        assert metrics['ratio_max'] > 1.6 and metrics['sampler_gap_mean'] == pytest.approx(0.5, abs=1e-5)


@pytest.mark.unittest
class TestCost:

    @pytest.mark.parametrize(
        'model, batch_size, epochs, passes', [
            (dict(), 2, 2, 4),
            (HALF[1], 4, 1, 1),
            (HALF[1], 4, 3, 3),
            (HALF[1], 2, 1, 3),
            (HALF[0], 1, 2, 11),
        ],
        ids=str
    )
    def test_one_more_forward_pass_of_all_but_the_first_mini_batch(
        self, think_answer, model, batch_size, epochs, passes
    ):
        policy = noisy(think_answer, model, dict(batch_size=batch_size, epoch_per_collect=epochs))
        policy.observers['watch'].look = lambda batch: None  # reads some rows once more
        asked, read = [], policy._actor.read
        policy._actor.read = lambda *args, **kwargs: asked.append(1) or read(*args, **kwargs)
        data = groups(policy)
        policy.learn_mode.forward(data)
        assert len(asked) == passes
        asked.clear()
        policy.learn_mode.forward(data)  # of older weights now: there is nothing to read before
        assert len(asked) == 4 // batch_size * epochs

    @pytest.mark.parametrize('model', [dict(), *HALF], ids=str)
    def test_further_epochs(self, think_answer, model):
        """They have the mini-batches of the first where rounding depends on what is read together, else others."""
        policy = noisy(think_answer, model, dict(batch_size=2, epoch_per_collect=6, learning_rate=1e-12))
        seen, updater = [], policy._learning.updater
        update = updater.step
        updater.step = lambda batch: seen.append(tuple(p.tolist()[-4] for p in batch.prompts)) or update(batch)
        policy.learn_mode.forward(groups(policy))
        assert len(seen) == 12 and (len(set(seen)) == 2) == bool(model)
        orders = {tuple(seen[i:i + 2]) for i in range(0, 12, 2)}
        assert len(orders) > 1  # but in another order


@pytest.mark.unittest
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
        assert sampler_gap(batch, logp, fresh) == dict(sampler_gap_mean=0.25, sampler_gap_max=0.5)
        assert sampler_gap(batch, logp, fresh_rows(batch, 8)) == {}

    @pytest.mark.parametrize('sampling', [dict(), dict(temperature=0.01), dict(top_k=5, top_p=0.9)], ids=str)
    def test_in_float32_it_is_rounding(self, think_answer, sampling):
        policy = noisy(think_answer, dict(), dict(batch_size=2, learning_rate=1e-3, epoch_per_collect=2), **sampling)
        most = 1e-5 if sampling.get('temperature') is None else 1e-4  # of logits that are 100 times as large
        for _ in range(2):
            metrics = policy.learn_mode.forward(groups(policy))
            assert 0 <= metrics['sampler_gap_mean'] <= metrics['sampler_gap_max'] < most

    @pytest.mark.parametrize('learn', [dict(), dict(batch_steps=2)], ids=str)
    def test_of_other_environments(self, learn):
        policy = make(DISCRETE, learn=dict(learning_rate=1e-2, epoch_per_collect=2, **learn))
        data = [sample_group(policy, [3, 2], lambda row, step: float(row))]
        assert policy.learn_mode.forward(data)['sampler_gap_max'] < 1e-6
        assert 'sampler_gap_max' not in policy.learn_mode.forward(data)  # sampled by older weights

    def test_a_difference_is_found(self, think_answer):
        policy = noisy(think_answer, dict(), dict(batch_size=4))
        data = groups(policy)
        data[3]['logp_old'][1, 0] += 0.25
        assert policy.learn_mode.forward(data)['sampler_gap_max'] == pytest.approx(0.25, abs=1e-5)

    def test_before_the_first_step_alone(self, think_answer):
        policy = noisy(think_answer, dict(), dict(batch_size=1, epoch_per_collect=2, learning_rate=1e-2))
        assert policy.learn_mode.forward(groups(policy))['sampler_gap_max'] < 1e-5

    def test_is_monitored(self, think_answer):
        policy = noisy(think_answer, dict())
        assert {'sampler_gap_mean', 'sampler_gap_max'} <= set(policy.learn_mode.monitor_vars())


@pytest.mark.unittest
class TestResume:

    def test_groups_are_as_fresh_as_before(self, think_answer):
        options = think_answer, HALF[1], dict(batch_size=2, epoch_per_collect=2, learning_rate=1e-2)
        policy, other = noisy(*options), noisy(*options)
        policy.learn_mode.forward(groups(policy))
        data = groups(policy)
        other.learn_mode.load_state_dict(copy.deepcopy(policy.learn_mode.state_dict()))
        a, b = (p.learn_mode.forward(data) for p in (policy, other))
        assert a['sampler_gap_max'] == b['sampler_gap_max'] and a['total_loss'] == b['total_loss']
        assert torch.equal(vector(policy._model.parameters()), vector(other._model.parameters()))
