"""Every sampling option: what the sampler reports, what the learner recomputes, and plain transformers agree."""
import copy
import sys
import types

import pytest
import torch

from ding_common import ConfigError
from ding_grpo.act.sampling_rules import seen_tokens, token_rules
from ding_grpo.data.batch import Batch
from ding_grpo.rollout import Sampling
from dizoo_llm.envs import TokenEnv
from tests.cases import long

from tests.policies import make_batch, make_policy, sample_dialogues, sample_groups
from tests.learn.test_grpo import reward, vector
from tests.act.test_turn_masks import Chatter

BIAS = [(4, 1.5), (7, -2.0), (2, 0.5)]
OPTIONS = [
    dict(top_p=0.8),
    dict(min_p=0.3),
    dict(typical_p=0.8),
    dict(repetition_penalty=1.8),
    dict(logit_bias=BIAS),
    dict(allowed_tokens='grammar_of_test:even_after_odd'),
    dict(top_k=9, min_p=0.2),
    dict(top_k=9, repetition_penalty=1.8, logit_bias=BIAS),
]
ALL = dict(
    temperature=0.8,
    top_p=0.97,
    min_p=0.02,
    typical_p=0.95,
    repetition_penalty=1.4,
    logit_bias=BIAS,
    allowed_tokens='grammar_of_test:even_after_odd',
)
TOGETHER = [ALL, dict(ALL, top_k=12)]


def even_after_odd(prompt, tokens, tokenizer):
    """After an odd token, even ones only."""
    last = (tokens or prompt)[-1]
    return [i for i in range(len(tokenizer)) if i % 2 == 0] if last % 2 else None


@pytest.fixture(autouse=True)
def grammar(monkeypatch):
    """A user's module."""
    module = types.ModuleType('grammar_of_test')
    module.even_after_odd, module.number = even_after_odd, 5
    module.nothing = lambda prompt, tokens, tokenizer: []
    module.beyond = lambda prompt, tokens, tokenizer: [len(tokenizer)]
    module.fails = lambda prompt, tokens, tokenizer: tokens[99]
    module.__spec__ = types.SimpleNamespace(name='grammar_of_test')
    monkeypatch.setitem(sys.modules, 'grammar_of_test', module)


def uneven(policy):
    """Larger weights, whose distributions are far from uniform."""
    with torch.no_grad():
        for p in policy._model.parameters():
            if p.dim() > 1:
                p.mul_(6)
    return policy


def make(think_answer, options, learn=dict(), env=None):
    main, create = copy.deepcopy(think_answer)
    main.policy.collect.update(options)
    main.policy.learn.update(learn)
    return uneven(make_policy(main, create, env=env))


def of_transformers(policy, options, prompt, action):
    """Log-probabilities of a row's tokens, from its whole prefix at each of them."""
    model, options = policy._model, dict(dict(top_k=0), **options)
    if options.pop('allowed_tokens', None):
        tokenizer = policy._actor.spec.tokenizer
        options['prefix_allowed_tokens_fn'] = \
            lambda row, ids: even_after_odd([], ids.tolist(), tokenizer) or range(len(tokenizer))
    bias = options.pop('logit_bias', None)
    if bias:
        options['sequence_bias'] = [[[i], b] for i, b in bias]
    unknown = list(range(model.output_tokens, model.lm.config.vocab_size))  # the tokenizer has fewer tokens
    options.update(suppress_tokens=unknown or None, use_cache=False, max_new_tokens=1)
    options.update(do_sample=True, output_scores=True, return_dict_in_generate=True)
    found = []
    for t, token in enumerate(action.tolist()):
        ids = torch.cat([prompt, action[:t]])[None]
        scores = model.lm.generate(ids, attention_mask=torch.ones_like(ids), **options).scores[0]
        found.append(scores.log_softmax(-1)[0, token])
    return torch.stack(found)


def gap(policy, samples):
    batch = Batch.of(samples)
    with torch.no_grad():
        found = policy._actor.read(policy._model, batch).logp
    own = batch.weight != 0
    return (found - batch.logp_old)[own].abs().max(), batch


@pytest.mark.unittest
class TestOneTurn:

    @pytest.mark.parametrize('log_prob_fn', ['linear_log_prob', 'efficient_method'])
    @pytest.mark.parametrize('options', OPTIONS + TOGETHER, ids=str)
    def test_sampler_learner_and_transformers_agree(self, think_answer, options, log_prob_fn):
        policy = make(think_answer, options, dict(log_prob_fn=log_prob_fn))
        samples = sample_groups(policy, [0, 1, 2])
        most, batch = gap(policy, samples)
        assert most <= 1e-5
        for row in range(0, len(batch), 5):
            n = int(batch.length[row])
            expected = of_transformers(policy, options, batch.prompts[row], batch.action[row, :n])
            assert (expected - batch.logp_old[row, :n]).abs().max() <= 1e-5

    @pytest.mark.parametrize('options', OPTIONS + TOGETHER, ids=str)
    def test_updates_see_the_same_distribution(self, think_answer, options):
        learn = dict(beta=0.1, entropy_weight=0.1, batch_size=2, micro_batch_tokens=60, mask_truncated=True)
        policy = make(think_answer, options, learn)
        samples = sample_groups(policy, [0, 1, 2, 3], reward=reward)
        metrics = policy.learn_mode.forward(samples)
        assert metrics['sampler_gap_max'] <= 1e-5 and metrics['grad_norm'] > 0
        assert metrics['optimizer_steps'] >= 1 and metrics['skipped_steps'] == 0  # some have truncated rows only
        # What was stored still contains every sampled token, whatever the new weights would keep.
        with torch.no_grad():
            again = policy._actor.read(policy._model, Batch.of(samples))
        assert again.logp.isfinite().all() and again.entropy.isfinite().all()

    def test_changed_weights_do_not_change_the_set(self, think_answer):
        policy = make(think_answer, dict(top_p=0.6))
        samples = sample_groups(policy, [0, 1])
        before = Batch.of(samples)
        with torch.no_grad():
            for p in policy._model.parameters():
                p.add_(0.5 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
        logit = policy._model.lm(torch.cat([before.prompts[0], before.action[0, :1]])[None]).logits[0, -2:-1]
        kept = policy._actor._sampling.restrict(logit[:, :policy._model.output_tokens])[1]
        stored = Batch.of(samples)
        width = int(stored.kept_width[0, 0])
        assert kept.sum() != width or kept.nonzero()[:, 1].tolist() != stored.kept_words[:width].tolist()
        with torch.no_grad():
            logp = policy._actor.read(policy._model, stored).logp
        assert logp.isfinite().all() and (logp <= 0).all()

    @pytest.mark.parametrize('options', [ALL, dict(repetition_penalty=1.8)], ids=['all', 'penalty'])
    def test_greedy_decoding_uses_bias_penalty_and_grammar(self, think_answer, options):
        policy = make(think_answer, options)
        env = TokenEnv(max_new_tokens=6)
        obs = {i: env.reset(options=dict(index=i))[0] for i in range(4)}
        for i, out in policy.eval_mode.forward(obs).items():
            prompt, action = out['prompt'], out['action']
            kwargs = {}
            if 'allowed_tokens' in options:
                tokenizer = policy._actor.spec.tokenizer
                kwargs = dict(
                    sequence_bias=[[[i], b] for i, b in BIAS],
                    prefix_allowed_tokens_fn=lambda _, ids: even_after_odd([], ids.tolist(), tokenizer) or
                    list(range(len(tokenizer)))
                )
            spec = policy._actor.spec
            peer = policy._model.lm.generate(
                prompt[None],
                attention_mask=torch.ones(1, len(prompt)).long(),
                max_new_tokens=6,
                do_sample=False,
                repetition_penalty=options['repetition_penalty'],
                eos_token_id=list(spec.eos_token_ids),
                pad_token_id=0,
                **kwargs
            )[0, len(prompt):]
            assert action.tolist() == peer.tolist()

    def test_rows_and_groups_keep_their_own_sets(self, think_answer):
        """Mini-batches take rows in another order, drop some and cut others."""
        policy = make(think_answer, dict(top_p=0.8))
        batch = Batch.of(sample_groups(policy, [0, 1, 2, 3]))
        short = int(batch.length[batch.length < 6].max())
        batch.length = torch.where(batch.length <= short, batch.length, 0)  # as mask_truncated does
        rows = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))[:len(batch) - 3]
        taken = batch.take(rows)
        assert taken.kept_width.shape[1] == short < batch.kept_width.shape[1]
        bounds = torch.cat([torch.zeros(1).long(), batch.kept_width.flatten().cumsum(0)])
        start, longest = 0, batch.kept_width.shape[1]
        for row, width in zip(rows.tolist(), taken.kept_width):
            for t, n in enumerate(width.tolist()):
                at = int(bounds[row * longest + t])
                assert torch.equal(taken.kept_words[start:start + n], batch.kept_words[at:at + n])
                start += n
        assert start == len(taken.kept_words) > 0


@pytest.mark.unittest
@pytest.mark.parametrize('options', [*(long(option) for option in OPTIONS), *TOGETHER], ids=str)
class TestTurns:

    def test_sampler_learner_and_transformers_agree(self, think_answer, options):
        env = TokenEnv(Chatter(), max_turns=4, max_new_tokens=5, max_reply_tokens=10)
        policy = make(
            think_answer, options, dict(adv_method='no_std', advantage='return_to_go_by_step', reduction='constant'),
            env
        )
        samples = sample_dialogues(policy, env, 6)
        most, batch = gap(policy, samples)
        assert most <= 1e-5 and (batch.turn.amax(1) > 0).sum() > 10
        for row in range(0, len(batch), 6):
            n = int(batch.length[row])
            own = batch.weight[row, :n] != 0
            expected = of_transformers(policy, options, batch.prompts[row], batch.action[row, :n])
            assert (expected - batch.logp_old[row, :n])[own].abs().max() <= 1e-5
        assert policy.learn_mode.forward(samples)['sampler_gap_max'] <= 1e-5

    def test_a_kept_cache_equals_reading_again(self, think_answer, options, monkeypatch):
        env = TokenEnv(Chatter(), max_turns=4, max_new_tokens=5, max_reply_tokens=10)
        found = []
        for kept in (True, False):
            policy = make(think_answer, options, env=env)
            assert policy._model.shares_prompts
            if not kept:
                monkeypatch.setattr(policy._actor, '_keeps_cache', lambda: False)
            found.append(Batch.of(sample_dialogues(policy, env, 3)))
        assert torch.equal(found[0].action, found[1].action)
        assert (found[0].logp_old - found[1].logp_old).abs().max() <= 1e-5
        if found[0].kept_words is not None:
            assert torch.equal(found[0].kept_words, found[1].kept_words)


@pytest.mark.unittest
def test_tokens_count_as_seen_after_their_position():
    # Padding is token 0 in rows and in prompts; it is seen only where it was read.
    batch = make_batch(
        torch.tensor([[1., 1., 1.], [1., 0., 0.]]),
        action=torch.tensor([[3, 0, 3], [5, 0, 0]]),
        prompts=[torch.tensor([2, 2]), torch.tensor([5, 4, 1])]
    )
    sampling = Sampling(repetition_penalty=2.0)
    seen = seen_tokens(sampling, batch, 6)
    assert [[row.nonzero()[:, 0].tolist() for row in rows] for rows in seen] == [
        [[2], [2, 3], [0, 2, 3]],
        [[1, 4, 5]] * 3,
    ]
    assert (token_rules(sampling, batch, 6).first_seen[0] == torch.tensor([2, 4, 0, 1, 4, 4])).all()
    assert token_rules(Sampling(), batch, 6) is None


@pytest.mark.unittest
class TestConfig:

    @pytest.mark.parametrize(
        'options, message', [
            (dict(logit_bias=[('to be', 1.)]), "the text 'to be' is not one token"),
            (dict(logit_bias=[(10 ** 6, 1.)]), 'token 1000000 does not exist'),
            (dict(logit_bias=[(1, float('nan'))]), 'must be a list of pairs'),
            (dict(logit_bias=[3]), 'must be a list of pairs'),
            (dict(allowed_tokens='grammar'), "must be 'module:function'"),
            (dict(allowed_tokens='grammar_of_test:number'), 'must be a function, not int'),
            (dict(min_p=0), r'min_p = 0: must be a number in \(0, 1\]'),
            (dict(typical_p=1.5), r'typical_p = 1.5: must be'),
            (dict(repetition_penalty=0), 'repetition_penalty = 0'),
        ]
    )
    def test_wrong_values(self, think_answer, options, message):
        with pytest.raises(ConfigError, match=message):
            make(think_answer, options)

    @pytest.mark.parametrize(
        'name, message', [
            ('nothing', 'after 0 tokens of a turn .* returned no token'),
            ('beyond', 'which is not a token id from 0 to'),
            ('fails', 'the function failed .*IndexError'),
        ]
    )
    def test_a_grammar_that_allows_nothing(self, think_answer, name, message):
        policy = make(think_answer, dict(allowed_tokens=f'grammar_of_test:{name}'))
        with pytest.raises(ConfigError, match=f'policy.collect.allowed_tokens: .*{message}'):
            sample_groups(policy, [0])

    def test_a_bias_by_text(self, think_answer):
        policy = make(think_answer, dict())
        tokenizer = policy._actor.spec.tokenizer
        text = tokenizer.convert_ids_to_tokens(5)
        bound = make(think_answer, dict(logit_bias=[(text, -3.0), (4, 1.0)]))._actor._sampling.logit_bias
        assert bound[5] == -3 and bound[4] == 1 and (bound != 0).sum() == 2

    def test_training_without_the_options_has_no_rules(self, think_answer, monkeypatch):
        policy = make(think_answer, dict())
        given = []
        from ding_grpo.act import token_actor
        real = token_actor.linear_log_prob
        policy._actor._log_prob_fn = spy = lambda *args, **kwargs: given.append(kwargs['rules']
                                                                                ) or real(*args, **kwargs)
        monkeypatch.setattr(token_actor, 'linear_log_prob', spy)
        before = vector(policy._model.parameters())
        policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward))
        assert given and set(given) == {None} and not torch.equal(before, vector(policy._model.parameters()))
