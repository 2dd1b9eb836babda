import copy
import functools

import pytest
import torch

from ding_common import ConfigError
from ding_grpo.learn.metrics import STEP_METRICS
from ding_grpo.rl_utils import LOSS_PRESETS, group_advantage
from tests.shipped import small

from tests.policies import make_batch, make_policy, sample_groups

SAMPLINGS = [
    dict(),
    dict(temperature=0.7),
    dict(temperature=1.3, top_k=6),
    dict(temperature=0.9, top_k=12, top_p=0.8),
]


def reward(group, row):
    return float((group + row) % 3) / 2


def vector(parameters):
    return torch.cat([p.detach().flatten() for p in parameters])


def stood_still():
    """What ``Updater.step`` gives."""
    return dict(dict.fromkeys(STEP_METRICS, 0.), optimizer_steps=1., skipped_steps=0., empty_steps=0.)


def by_prompt(batch):
    """Advantages of a batch's rows, by their prompt."""
    found = {}
    for prompt, adv in zip(batch.prompts, batch.adv.tolist()):
        found.setdefault(tuple(prompt.tolist()), []).append(adv)
    return found


@pytest.mark.unittest
class TestOnPolicyIdentity:

    @pytest.mark.parametrize('sampling', SAMPLINGS, ids=str)
    def test_first_update(self, think_answer, sampling):
        main, create = think_answer
        main.policy.collect.update(sampling)
        main.policy.learn.update(beta=0.3, entropy_weight=0.1)
        policy = make_policy(main, create)
        with torch.no_grad():  # a reference unlike the policy, so that the KL is not 0
            for p in policy._learning.reference.copy.parameters():
                p.mul_(1.1)
        metrics = policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward))
        assert metrics['ratio_mean'] == pytest.approx(1, abs=1e-5)
        assert metrics['ratio_max'] == pytest.approx(1, abs=1e-5)
        assert metrics['clipfrac'] == 0 and metrics['approx_kl'] == pytest.approx(0, abs=1e-5)
        assert all(torch.isfinite(p).all() for p in policy._model.parameters())  # top_p with an entropy bonus

    def test_loss_is_beta_times_kl_when_lengths_are_equal(self, think_answer):
        main, create = think_answer
        main.policy.learn.update(beta=0.3, entropy_weight=0.0)
        policy = make_policy(main, create)
        with torch.no_grad():
            for p in policy._learning.reference.copy.parameters():
                p.mul_(1.3)
        data = sample_groups(policy, [0, 1], reward=reward)
        for sample in data:  # rows of one length, so that the KL's mean over tokens is its mean over rows
            sample['weight'] = torch.zeros_like(sample['weight'])
            sample['weight'][:, 0] = 1
        metrics = policy.learn_mode.forward(data)
        assert metrics['kl'] > 1e-4
        assert metrics['policy_loss'] == pytest.approx(0.3 * metrics['kl'], abs=1e-6)

    @pytest.mark.parametrize('sampling', SAMPLINGS[1:], ids=str)
    def test_gradient_computed_independently(self, think_answer, sampling):
        """Minus the mean of (adv + beta * (pi_ref / pi - 1)) * grad log pi, each row read alone by plain
        transformers."""
        main, create = think_answer
        main.policy.collect.update(sampling)
        main.policy.learn.update(beta=0.3, entropy_weight=0.0, grad_clip_value=1e9)
        policy = make_policy(main, create)
        with torch.no_grad():
            for p in policy._learning.reference.copy.parameters():
                p.mul_(1.1)
        data = sample_groups(policy, [0, 1], reward=reward)
        lm = copy.deepcopy(policy._model.lm)
        policy.learn_mode.forward(copy.deepcopy(data))
        found = torch.cat([p.grad.flatten() for p in policy._model.parameters()])

        def log_prob(model, sample, row):
            n = int(sample['weight'][row].sum())
            action = sample['action'][row, :n]
            logit = model(torch.cat([sample['prompt'], action])[None]).logits[0, len(sample['prompt']) - 1:-1]
            logit = logit / main.policy.collect.temperature
            if 'kept' in sample:
                allowed = torch.zeros_like(logit).bool()
                for t in range(n):
                    kept = sample['kept'][row, t]
                    allowed[t, kept[kept >= 0]] = True
                logit = logit.masked_fill(~allowed, float('-inf'))
            return logit.log_softmax(-1)[torch.arange(n), action]

        total, rows = 0., 0
        for sample in data:
            adv = group_advantage(sample['reward'].sum(1), torch.zeros(len(sample['action'])).long(), 'no_std')
            for row in range(len(sample['action'])):
                logp = log_prob(lm, sample, row)
                with torch.no_grad():
                    ratio = (log_prob(policy._learning.reference.copy.lm, sample, row) - logp).exp()
                total = total - ((adv[row] + 0.3 * (ratio - 1)) * logp).mean()
                rows += 1
        (total / rows).backward()
        expected = torch.cat([p.grad.flatten() for p in lm.parameters()])
        assert expected.norm() > 1e-3
        assert (found - expected).norm() < 1e-4 * expected.norm()


def learned_with(options):
    """The weights after two updates of a small policy with these options."""
    main, create = small('think_answer_grpo')
    main.policy.learn.update(learning_rate=1e-2, beta=0.1, entropy_weight=0.0, epoch_per_collect=3)
    main.policy.learn.update(clip_ratio=None, adv_method='no_std')
    main.policy.learn.update(options)
    policy = make_policy(main, create)
    data = sample_groups(policy, [0, 1], reward=reward)
    for _ in range(2):
        policy.learn_mode.forward(data)
    return vector(policy._model.parameters())


@functools.cache
def learned_without_options():
    return learned_with({})


@pytest.mark.unittest
class TestLearn:

    def test_without_beta_no_reference_is_kept(self, think_answer):
        main, create = think_answer
        policy = make_policy(main, create)
        assert policy._learning.reference is None and 'kl' not in policy.learn_mode.monitor_vars()

    def test_reference_is_a_frozen_copy_of_the_start(self, think_answer, tiny_model):
        # The tutorial notebook's reference is a second random model: its KL is large from the first update on.
        main, create = think_answer
        main.policy.learn.beta = 0.1
        start = vector(tiny_model.parameters())
        policy = make_policy(main, create, model=tiny_model)
        metrics = policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward))
        assert metrics['kl'] == pytest.approx(0, abs=1e-6)
        assert torch.equal(vector(policy._learning.reference.copy.parameters()), start)
        assert not any(p.requires_grad for p in policy._learning.reference.copy.parameters())
        assert not torch.equal(vector(policy._model.parameters()), start)
        assert not any('reference' in key for key in policy.learn_mode.state_dict())

    def test_reference_has_the_tokenizers_vocabulary_too(self, think_answer):
        main, create = think_answer
        main.policy.model.config.vocab_size = 48  # more than the tokenizer's 32
        main.policy.learn.beta = 0.1
        policy = make_policy(main, create)
        assert policy.learn_mode.forward(sample_groups(policy, [0, 1]))['kl'] == pytest.approx(0, abs=1e-6)

    def test_reference_is_asked_once_however_many_epochs(self, think_answer):
        main, create = think_answer
        main.policy.learn.update(beta=0.1, epoch_per_collect=4, batch_size=1)
        policy = make_policy(main, create)
        asked = []
        read = policy._learning.reference.copy.completion_states
        policy._learning.reference.copy.completion_states = lambda *args: asked.append(1) or read(*args)
        policy.learn_mode.forward(sample_groups(policy, [0, 1, 2]))
        assert len(asked) == 3

    @pytest.mark.parametrize(
        'key, value', [
            ('clip_ratio', 0.01),
            ('kl_type', 'k1'),
            ('clip_ratio_high', 0.01),
            ('delta', 1.21),
            ('ratio', 'sequence'),
            ('surrogate', 'sapo'),
            ('surrogate_options', dict(dual_clip=1.01)),
            ('reduction', 'token'),
            ('reduction', 'constant'),
            ('kl_ratio_correction', True),
            *(('loss', name) for name in LOSS_PRESETS if name != 'grpo'),
            ('beta', 0.5),
            ('weight_decay', 0.5),
            ('entropy_weight', 0.5),
            ('learning_rate', 1e-4),
            ('grad_clip_value', 1e-6),
            *(('adv_method', name) for name in ('grpo', 'max_rl', 'reinforce_plus_plus', 'optimal_token_baseline')),
            ('lr_scheduler', dict(type='linear', num_warmup_steps=3, num_training_steps=9)),
            ('lr_scheduler', dict(type='cosine_with_min_lr', num_training_steps=4, specific=dict(min_lr_rate=0.9))),
        ]
    )
    def test_every_option_of_the_config_changes_what_is_learned(self, key, value):
        assert not torch.equal(learned_with({key: value}), learned_without_options())

    def test_constant_reduction_divides_by_the_environments_length_limit(self, think_answer):
        main, create = think_answer
        main.policy.learn.update(reduction='constant', entropy_weight=0.0, beta=0.1)
        policy = make_policy(main, create)
        with torch.no_grad():
            for p in policy._learning.reference.copy.parameters():
                p.mul_(1.3)
        data = sample_groups(policy, [0, 1], reward=lambda group, row: 1.)  # no advantage: the loss is the KL's
        tokens = sum(sample['weight'].sum().item() for sample in data)
        metrics = policy.learn_mode.forward(data)
        # sum over tokens of beta k3, over 8 rows of 6 tokens at most
        assert metrics['policy_loss'] == pytest.approx(0.1 * metrics['kl'] * tokens / (8 * 6), rel=1e-4)

    @pytest.mark.parametrize('entropy_weight', [0., 0.1])
    @pytest.mark.parametrize('sampling', [dict(temperature=0.7), dict(top_k=5, top_p=0.9)], ids=str)
    @pytest.mark.parametrize('name', ['efficient_method', 'naive_method', 'less_efficient_method'])
    def test_from_hidden_states_or_from_logits_the_same_is_learned(self, think_answer, name, sampling, entropy_weight):
        main, create = think_answer
        main.policy.learn.update(beta=0.1, entropy_weight=entropy_weight, learning_rate=1e-3)
        main.policy.collect.update(sampling)
        learned = []
        for main.policy.learn.log_prob_fn in ('linear_log_prob', name):
            policy = make_policy(main, create)
            metrics = policy.learn_mode.forward(sample_groups(policy, [0, 1]))
            learned.append((metrics, vector(p.grad for p in policy._model.parameters())))
        (one, first), (two, second) = learned  # gradients: AdamW's step magnifies those of rounding alone
        assert first.norm() > 1e-2 and torch.allclose(first, second, rtol=0, atol=1e-7)
        for key in ('total_loss', 'kl', 'entropy', 'grad_norm', 'ratio_max'):
            assert one[key] == pytest.approx(two[key], rel=1e-4, abs=1e-6), key

    def test_reads_as_the_config_says(self, think_answer, monkeypatch):
        main, create = think_answer
        for name, method in (('linear_log_prob', 'completion_states'), ('naive_method', 'completion_logits')):
            main.policy.learn.log_prob_fn = name
            policy = make_policy(main, create)
            called = []
            read = getattr(policy._model, method)
            policy._model.__dict__[method] = lambda *args: called.append(1) or read(*args)
            policy.learn_mode.forward(sample_groups(policy, [0, 1]))
            assert called

    def test_every_monitored_variable_is_there_and_a_float(self, think_answer):
        main, create = think_answer
        main.policy.learn.beta = 0.1
        policy = make_policy(main, create)
        metrics = policy.learn_mode.forward(sample_groups(policy, [0, 1]))
        assert set(policy.learn_mode.monitor_vars()) <= set(metrics)
        assert all(type(value) is float for value in metrics.values())

    def test_good_completions_become_likelier(self, think_answer):
        main, create = think_answer
        main.policy.learn.learning_rate = 1e-3
        policy = make_policy(main, create)
        data = sample_groups(policy, [0, 1], reward=lambda group, row: float(row == 0))

        def logp():
            rows = []
            for sample in data:
                batch = make_batch(sample['weight'], prompts=[sample['prompt']] * 4, action=sample['action'])
                rows.append((policy._actor.read(policy._model, batch)[0] * sample['weight']).sum(1))
            return torch.stack(rows).detach()

        before = logp()
        policy.learn_mode.forward(data)
        change = (logp() - before)
        assert (change[:, 0] > 0).all() and (change[:, 0] > change[:, 1:].max(1).values).all()

    def test_equal_groups_are_dropped_on_request(self, think_answer):
        main, create = think_answer
        main.policy.learn.drop_equal_groups = True
        main.policy.learn.batch_size = 1
        policy = make_policy(main, create)
        steps = []
        update = policy._learning.updater.step
        policy._learning.updater.step = lambda batch: steps.append(len(by_prompt(batch))) or update(batch)
        data = sample_groups(policy, [0, 1], reward=lambda group, row: float(group == 0 and row == 0))
        metrics = policy.learn_mode.forward(data)
        assert steps == [1] and metrics['equal_groups'] == 0.5
        start = vector(policy._model.parameters())
        metrics = policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=lambda group, row: 1.))
        assert steps == [1] and metrics['equal_groups'] == 1
        assert 'total_loss' not in metrics and 'entropy' not in metrics  # nothing was learned: neither 0 nor NaN
        assert torch.equal(vector(policy._model.parameters()), start)

    def test_epochs_and_mini_batches_of_whole_groups(self, think_answer):
        main, create = think_answer
        main.policy.learn.update(epoch_per_collect=3, batch_size=2)
        policy = make_policy(main, create)
        seen = []
        update = policy._learning.updater.step
        policy._learning.updater.step = lambda batch: seen.append(by_prompt(batch)) or update(batch)
        policy.learn_mode.forward(sample_groups(policy, [0, 1, 2]))
        assert [len(s) for s in seen] == [2, 1] * 3
        assert all(len({**seen[i], **seen[i + 1]}) == 3 for i in (0, 2, 4))
        assert all(len(adv) == policy.cfg.group_size for s in seen for adv in s.values())

    def test_advantage_of_a_group_does_not_depend_on_the_mini_batch(self, think_answer):
        main, create = think_answer
        advs = []
        for batch_size in (1, 3):
            main.policy.learn.batch_size = batch_size
            policy = make_policy(main, create)
            found = {}
            policy._learning.updater.step = lambda batch: found.update(by_prompt(batch)) or stood_still()
            policy.learn_mode.forward(sample_groups(policy, [0, 1, 2], reward=reward))
            advs.append(found)
        assert advs[0] == advs[1] and len(advs[0]) == 3
        assert all(any(adv) and sum(adv) == pytest.approx(0) for adv in advs[0].values())

    def test_advantage_method_is_the_configs(self, think_answer):
        main, create = think_answer
        for method, expected in (('no_std', 0.75), ('grpo', 1.5)):  # rewards 1, 0, 0, 0: see test_advantage.py
            main.policy.learn.adv_method = method
            policy = make_policy(main, create)
            found = []
            policy._learning.updater.step = lambda batch: found.extend(batch.adv.tolist()) or stood_still()
            policy.learn_mode.forward(sample_groups(policy, [0], reward=lambda group, row: float(row == 0)))
            assert found[0] == pytest.approx(expected, rel=1e-3)

    def test_entropy_bonus_raises_the_entropy(self, think_answer):
        main, create = think_answer
        main.policy.learn.learning_rate = 1e-3
        entropies = {}
        for weight in (0.0, 1.0):
            main.policy.learn.entropy_weight = weight
            policy = make_policy(main, create)
            with torch.no_grad():
                policy._model.lm.lm_head.weight.mul_(30)  # far from uniform
            data = sample_groups(policy, [0, 1], reward=lambda group, row: 1.)  # nothing to learn but entropy
            entropies[weight] = [policy.learn_mode.forward(data)['entropy'] for _ in range(5)]
        assert entropies[0.0][-1] == pytest.approx(entropies[0.0][0])
        assert entropies[1.0][-1] > entropies[1.0][0] + 0.05

    def test_gradient_is_clipped(self, think_answer):
        main, create = think_answer
        main.policy.learn.grad_clip_value = 1e-3
        policy = make_policy(main, create)
        metrics = policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward))
        norm = torch.cat([p.grad.flatten() for p in policy._model.parameters()]).norm()
        assert metrics['grad_norm'] > 1e-2 and norm == pytest.approx(1e-3, rel=1e-3)

    def test_learning_rate_schedule(self, think_answer):
        main, create = think_answer
        main.policy.learn.learning_rate = 1e-3
        main.policy.learn.lr_scheduler = dict(type='linear', num_warmup_steps=0, num_training_steps=4)
        policy = make_policy(main, create)
        data = sample_groups(policy, [0])
        rates = [policy.learn_mode.forward(data)['cur_lr'] for _ in range(5)]
        assert rates == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4, 0])

    def test_state_is_restored_from_a_plain_checkpoint(self, think_answer, tmp_path):
        main, create = think_answer
        main.policy.learn.lr_scheduler = dict(type='linear', num_warmup_steps=0, num_training_steps=9)
        main.policy.learn.batch_size = 1  # so that the order of the mini-batches is part of the state
        policy = make_policy(main, create)
        policy.learn_mode.forward(sample_groups(policy, [0, 1, 2, 3]))
        torch.save(policy.learn_mode.state_dict(), tmp_path / 'ckpt')
        other = make_policy(main, create, seed=5)
        other.learn_mode.load_state_dict(torch.load(tmp_path / 'ckpt', weights_only=True))
        data = sample_groups(policy, [2, 3, 0, 1])
        a, b = policy.learn_mode.forward(data), other.learn_mode.forward(data)
        assert a['total_loss'] == b['total_loss'] and a['cur_lr'] == b['cur_lr']
        assert torch.equal(vector(policy._model.parameters()), vector(other._model.parameters()))


@pytest.mark.unittest
class TestCollect:

    def test_a_rows_numbers_depend_on_its_key_alone(self, think_answer):
        policy = make_policy(*think_answer)
        from dizoo_llm.envs import TokenEnv
        obs = TokenEnv(max_new_tokens=6).reset(options=dict(index=0))[0]
        forward = policy.collect_mode.forward
        one = forward({0: obs, 1: obs}, row_keys={0: (0, 0, 0), 1: (0, 0, 1)})
        policy.collect_mode.reset()
        two = forward({9: obs, 5: obs, 7: obs}, row_keys={9: (0, 0, 1), 5: (3, 0, 0), 7: (0, 0, 0)})
        assert one[0]['action'].tolist() == two[7]['action'].tolist()
        assert one[1]['action'].tolist() == two[9]['action'].tolist()
        assert len({tuple(o['action'].tolist()) for o in (one[0], one[1], two[5])}) == 3

    def test_a_rows_numbers_depend_on_the_runs_seed(self, think_answer, tiny_model):
        from dizoo_llm.envs import TokenEnv
        obs = TokenEnv(max_new_tokens=6).reset(options=dict(index=0))[0]
        actions = [
            make_policy(*think_answer, seed=seed, model=tiny_model).collect_mode.forward({0: obs}, {0: (0, 0, 0)})
            for seed in (0, 1)
        ]
        assert actions[0][0]['action'].tolist() != actions[1][0]['action'].tolist()

    def test_float_observations_of_the_evaluator_are_cast_back(self, think_answer):
        policy = make_policy(*think_answer)
        from dizoo_llm.envs import TokenEnv
        obs = TokenEnv(max_new_tokens=6).reset(options=dict(index=0))[0]
        a = policy.eval_mode.forward({0: obs})[0]['action']
        b = policy.eval_mode.forward({0: torch.tensor(obs, dtype=torch.float32)})[0]['action']
        assert torch.equal(a, b) and a.dtype == torch.long

    def test_only_taken_tokens_are_learned(self, think_answer):
        policy = make_policy(*think_answer)
        from tests.policies import Step
        out = dict(prompt=torch.tensor([5]), action=torch.tensor([1, 2, 3]), logp=torch.zeros(3), kept=None)
        step = policy.collect_mode.process_transition(torch.tensor([5, -1]), out, Step(1., dict(taken=2)))
        assert step['action'].tolist() == [1, 2] and step['reward'].tolist() == [0, 1]

    def test_unbound_policy_says_what_is_missing(self, think_answer):
        policy = make_policy(*think_answer)
        policy._actor._spec = None
        with pytest.raises(ConfigError, match="collector = dict\\(type='group'\\)"):
            policy.collect_mode.forward({0: torch.tensor([1, 2])}, row_keys={0: (0, 0, 0)})


@pytest.mark.unittest
class TestModel:

    def test_model_of_transformers_is_wrapped(self, think_answer, tiny_model):
        policy = make_policy(*think_answer, model=tiny_model.lm)
        assert policy._model.lm is tiny_model.lm

    def test_other_models_are_refused(self, think_answer):
        with pytest.raises(ConfigError, match='causal_lm'):
            make_policy(*think_answer, model=torch.nn.Linear(2, 2))

    @pytest.mark.parametrize(
        'spec, message', [
            (dict(vocab_size=33), 'env.tokenizer: its vocabulary of 33 tokens.*vocab_size = 32'),
            (dict(max_prompt_length=60), 'env.max_prompt_length = 60.*66 tokens.*64 positions'),
        ]
    )
    def test_tokens_that_do_not_fit_the_model(self, think_answer, spec, message):
        policy = make_policy(*think_answer)
        with pytest.raises(ConfigError, match=message):
            policy.bind(policy._actor.spec._replace(**spec))


@pytest.mark.unittest
class TestTargetKL:

    def learn(self, think_answer, **learn):
        """The weights after an update, its metrics, and of each mini-batch the KL, computed here, and whether the
        weights changed."""
        main, create = copy.deepcopy(think_answer)
        main.policy.learn.update(learning_rate=1e-2, **learn)
        policy = make_policy(main, create)
        update, seen = policy._learning.updater.step, []

        def note(batch):
            before = vector(policy._model.parameters())
            with torch.no_grad():
                log_ratio = policy._actor.read(policy._model, batch)[0] - batch.logp_old
            kl = ((log_ratio.exp() - 1 - log_ratio) * batch.weight).sum() / batch.weight.sum()
            metrics = update(batch)
            seen.append((kl.item(), not torch.equal(before, vector(policy._model.parameters()))))
            return metrics

        policy._learning.updater.step = note
        metrics = policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward))
        return vector(policy._model.parameters()), metrics, seen

    @pytest.mark.parametrize(
        'options', [dict(batch_size=2), dict(batch_size=1),
                    dict(batch_size=2, loss='gspo')], ids=str
    )
    def test_ends_the_epochs_where_it_is_exceeded(self, think_answer, options):
        got, metrics, seen = self.learn(think_answer, epoch_per_collect=50, target_kl=0.02, **options)
        steps = int(metrics['optimizer_steps'])
        assert 1 <= steps < 49 and len(seen) == steps + 1
        assert all(kl <= 0.02 and moved for kl, moved in seen[:-1])
        assert seen[-1][0] > 0.02 and not seen[-1][1]
        assert metrics['kl_old'] == pytest.approx(sum(kl for kl, _ in seen) / len(seen), rel=1e-3)

    def test_is_told_even_when_the_last_mini_batch_is_the_one(self, think_answer):
        _, metrics, seen = self.learn(think_answer, batch_size=2, epoch_per_collect=50, target_kl=0.02)
        epochs = len(seen)
        _, metrics, seen = self.learn(think_answer, batch_size=2, epoch_per_collect=epochs, target_kl=0.02)
        assert len(seen) == epochs and metrics['optimizer_steps'] == epochs - 1
        _, metrics, _ = self.learn(think_answer, batch_size=2, epoch_per_collect=epochs)
        assert metrics['optimizer_steps'] == epochs

    def test_wrong_value(self, think_answer):
        with pytest.raises(ConfigError, match='policy.learn.target_kl = 0: must be a number in'):
            self.learn(think_answer, target_kl=0)
