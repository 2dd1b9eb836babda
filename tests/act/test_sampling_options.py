"""Every sampling option: what the sampler reports, what the learner recomputes, and plain transformers agree."""
import sys
import types

import pytest
import torch

from ding_common import ConfigError
from ding_grpo.act.sampling_rules import kept_tokens, seen_tokens, token_rules
from ding_grpo.config.sections.processors import processor_arguments
from ding_grpo.data.batch import Batch
from ding_grpo.rollout import Sampling
from dizoo_llm.envs import TokenEnv
from tests.policies import (
    BY_TURN, SETTINGS, Chatter, change, make_batch, reward, sample_dialogues, sample_groups, token_policy
)

BIAS = [(4, 1.5), (7, -2.0), (2, 0.5)]
PENALTY = dict(type='repetition_penalty', penalty=1.8)
GRAMMAR = dict(type='grammar_of_test:even_after_odd')
OPTIONS = [
    dict(top_p=0.8),
    dict(processors=[dict(type='min_p', p=0.3)]),
    dict(processors=[dict(type='typical_p', p=0.8)]),
    dict(processors=[PENALTY]),
    dict(processors=[dict(type='logit_bias', bias=BIAS)]),
    dict(processors=[GRAMMAR]),
    dict(top_k=9, processors=[dict(type='min_p', p=0.2)]),
    dict(top_k=9, processors=[PENALTY, dict(type='logit_bias', bias=BIAS)]),
]
ALL = dict(
    temperature=0.8,
    top_p=0.97,
    processors=[
        dict(type='min_p', p=0.02),
        dict(type='typical_p', p=0.95),
        dict(type='repetition_penalty', penalty=1.4),
        dict(type='logit_bias', bias=BIAS),
        GRAMMAR,
    ],
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


def make(options, env=None, **learn):
    """A policy whose distributions are far from uniform."""
    policy = token_policy(collect=options, env=env, **learn)
    change(policy.model, 6)
    return policy


def generate_options(policy, options):
    """Of ``transformers``, for those of ``policy.collect``."""
    options, tokenizer = dict(options), policy.spec.tokenizer
    options.update(processor_arguments(options.pop('processors', [])))
    if options.pop('allowed_tokens', None):
        options['prefix_allowed_tokens_fn'] = \
            lambda row, ids: even_after_odd([], ids.tolist(), tokenizer) or list(range(len(tokenizer)))
    bias = options.pop('logit_bias', None)
    return dict(options, sequence_bias=[[[i], b] for i, b in bias]) if bias else options


def of_transformers(policy, options, prompt, action):
    """Log-probabilities of a row's tokens, from its whole prefix at each of them."""
    model, options = policy.model, generate_options(policy, dict(dict(top_k=0), **options))
    unknown = list(range(model.output_tokens, model.lm.config.vocab_size))  # the tokenizer has fewer tokens
    options.update(suppress_tokens=unknown or None, use_cache=False, max_new_tokens=1)
    options.update(do_sample=True, output_scores=True, return_dict_in_generate=True)
    found = []
    for t, token in enumerate(action.tolist()):
        ids = torch.cat([prompt, action[:t]])[None]
        scores = model.lm.generate(ids, attention_mask=torch.ones_like(ids), **options).scores[0]
        found.append(scores.log_softmax(-1)[0, token])
    return torch.stack(found)


def agree(policy, options, samples, every):
    """The batch, after its log-probabilities were compared with the learner's, and some rows' with transformers'."""
    batch = Batch.of(samples)
    own = batch.weight != 0
    assert (policy.read(batch).logp - batch.logp_old)[own].abs().max() <= 1e-5
    for row in range(0, len(batch), every):
        n = int(batch.length[row])
        expected = of_transformers(policy, options, batch.prompts[row], batch.action[row, :n])
        assert (expected - batch.logp_old[row, :n])[own[row, :n]].abs().max() <= 1e-5
    return batch


class TestOneTurn:

    @pytest.mark.parametrize(
        'options, log_prob_fn', [
            *((options, 'linear_log_prob') for options in OPTIONS + TOGETHER),
            *((options, 'efficient_method') for options in TOGETHER),
        ],
        ids=str
    )
    def test_sampler_learner_and_transformers_agree(self, options, log_prob_fn):
        policy = make(options, log_prob_fn=log_prob_fn)
        agree(policy, options, sample_groups(policy, [0, 1, 2]), every=5)

    @pytest.mark.parametrize('options', [dict(top_p=0.6), *TOGETHER], ids=str)
    def test_updates_see_the_same_distribution(self, options):
        learn = dict(
            batch_groups=2, micro_batch_tokens=60, mask_truncated=True, kl=dict(beta=0.1), entropy=dict(weight=0.1)
        )
        policy = make(options, **learn)
        samples = sample_groups(policy, [0, 1, 2, 3], reward=reward)
        metrics = policy.learn_mode.forward(samples)
        assert metrics['sampler_gap_max'] <= 1e-5 and metrics['grad_norm'] > 0
        assert metrics['optimizer_steps'] >= 1 and metrics['skipped_steps'] == 0  # some have truncated rows only
        # what was stored contains every sampled token, whatever other weights would keep
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for p in policy.model.parameters():
                p.add_(0.5 * torch.randn(p.shape, generator=generator))
        again = policy.read(Batch.of(samples))
        assert again.logp.isfinite().all() and (again.logp <= 0).all() and again.entropy.isfinite().all()

    def test_greedy_decoding_uses_bias_penalty_and_grammar(self):
        policy, env = make(ALL), TokenEnv(max_new_tokens=6)
        kwargs = generate_options(policy, dict(processors=ALL['processors'][2:]))
        for out in policy.eval_mode.forward({i: env.reset(options=dict(index=i))[0] for i in range(4)}).values():
            prompt = out['prompt']
            peer = policy.model.lm.generate(
                prompt[None],
                attention_mask=torch.ones(1, len(prompt)).long(),
                max_new_tokens=6,
                do_sample=False,
                eos_token_id=list(policy.spec.eos_token_ids),
                pad_token_id=0,
                **kwargs
            )[0, len(prompt):]
            assert out['action'].tolist() == peer.tolist()

    def test_rows_and_groups_keep_their_own_sets(self):
        """Mini-batches take rows in another order, drop some and cut others."""
        batch = Batch.of(sample_groups(make(dict(top_p=0.8)), [0, 1, 2, 3]))
        short = int(batch.length[batch.length < 6].max())
        batch.length = torch.where(batch.length <= short, batch.length, 0)  # as mask_truncated does
        rows = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))[:len(batch) - 3]
        taken = batch.take(rows)
        assert taken.kept_width.shape[1] == short < batch.kept_width.shape[1]
        kept, before = kept_tokens(taken, 32), kept_tokens(batch, 32)
        assert torch.equal(kept, before[rows, :short]) and len(before.unique(dim=0)) > 10


@pytest.mark.parametrize('options', TOGETHER, ids=['all', 'with top-k'])
class TestTurns:

    def test_sampler_learner_and_transformers_agree(self, options):
        env = TokenEnv(Chatter(), **SETTINGS['plain'][0])
        policy = make(options, env, **BY_TURN)
        samples = sample_dialogues(policy, env, 4)
        assert (agree(policy, options, samples, every=5).turn.amax(1) > 0).sum() > 6
        assert policy.learn_mode.forward(samples)['sampler_gap_max'] <= 1e-5


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


class TestConfig:

    @pytest.mark.parametrize(
        'name, message', [
            ('nothing', 'after 0 tokens of a turn .* returned no token'),
            ('beyond', 'which is not a token id from 0 to'),
            ('fails', 'the function failed .*IndexError'),
            ('number', 'must be a function, not int'),
        ]
    )
    def test_a_grammar_that_allows_nothing(self, name, message):
        with pytest.raises(ConfigError, match=f'policy.collect.processors: .*{message}'):
            sample_groups(make(dict(processors=[dict(type=f'grammar_of_test:{name}')])), [0])

    def test_a_bias_by_text(self):
        text = make({}).spec.tokenizer.convert_ids_to_tokens(5)
        by_text, by_id = (
            Batch.of(sample_groups(make(dict(processors=[dict(type='logit_bias', bias=[(token, -3.0), (4, 1.0)])]))))
            for token in (text, 5)
        )
        assert torch.equal(by_text.logp_old, by_id.logp_old)
