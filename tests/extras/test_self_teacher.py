"""``policy.teacher`` with ``self``: the policy learns from its own distributions with a context that it lacks."""
import copy
import re

import pytest
import torch

from ding_common import ConfigError
from ding_grpo.config.sections.supervised import self_teacher
from ding_grpo.data.batch import Batch
from ding_grpo.data.equal_rows import merge_equal_rows
from ding_grpo.extras.self_teacher import ContextOfRows
from ding_grpo.model import CausalLM
from ding_grpo.rl_utils import exact_kl, sequence_mean
from dizoo_llm import Problem
from dizoo_llm.envs import TokenEnv
from dizoo_llm.tasks.think_answer import ThinkAnswerTask
from dizoo_llm.text.tokenizer import build_word_tokenizer
from tests.extras.plain import assert_step, plain_logits, refused
from tests.policies import ALONE, change, resumed, sample_groups, token_policy, vector, weights
from tests.runs import metrics, train
from tests.shipped import small

BARE = dict(solution='{solution} ', feedback='{feedback} ', closing='', place='before')


class Told(ThinkAnswerTask):
    """Says of a completion how many words it has."""

    def feedback(self, problem, completion):
        return None if '7' in completion.split() else f'{problem.answer} {min(len(completion.split()), 24)}'


ENV = TokenEnv(Told(), max_new_tokens=6)


def taught(seed=0, distillation={}, policy={}, learn={}, base=None, **teacher):
    teacher = dict(BARE, **dict(dict(self='live', context='reference'), **teacher))
    learn = dict(ALONE, **learn)
    return token_policy(
        dict(policy, teacher=teacher), env=ENV, seed=seed, distillation=distillation, base=base, **learn
    )


def groups(policy, reward=lambda group, row: 1., indices=(0, 1), collect=0):
    """As the collector gives them: with the numbers of their problems, and ``solved`` as the reward says."""
    found = sample_groups(policy, indices, reward=reward, collect=collect)
    for number, (sample, index) in enumerate(zip(found, indices)):
        solved = torch.tensor([float(reward(number, row)) for row in range(len(sample['action']))])
        sample['reward_parts']['solved'] = solved
        sample['truncated'] = torch.zeros(len(solved))
        sample.update(problem=index, collect_iter=collect)
    return found


def text(ids):
    return ENV.tokenizer.decode(ids)


def context_of(policy, batch):
    return policy.terms['self_teacher'].prepare(batch, None).context


class TestLoss:

    @pytest.mark.parametrize('exact', [True, False])
    def test_the_gradient_is_that_of_the_plain_divergence(self, exact):
        """To the policy with the reference solution before the prompt, from logits that transformers computes."""
        policy = taught(distillation=dict(exact=exact), learn=dict(learning_rate=1e-9, weight_decay=0.))
        change(policy.model, 3.)
        samples = groups(policy)
        batch = Batch.of(samples)
        problems = [Told().problem(i) for i in batch.problem.tolist()]
        contexts = [torch.tensor(ENV.tokenizer.encode(f'{Told().demonstration(p)} {p.prompt}')) for p in problems]
        own, other = (plain_logits(policy.model, batch, prompts) for prompts in (batch.prompts, contexts))
        kl = exact_kl(own, other.detach())
        if not exact:
            logp, of_teacher = (
                x.log_softmax(-1).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1) for x in (own, other)
            )
            kl = (logp - of_teacher).detach() * logp  # its gradient is that of the estimate, as in SDPO of TRL
        expected = sequence_mean(kl, batch.weight)
        found = assert_step(policy, policy.learning.to_learn(batch), expected)
        if exact:
            assert found['teacher_loss'] == pytest.approx(expected.item(), abs=1e-6) and expected > 0.01

    def test_rows_without_a_context_add_nothing(self):
        policy = taught(context='feedback', learn=dict(learning_rate=1e-9))
        batch = Batch.of(groups(policy))
        learned = policy.learning.to_learn(batch)
        found = policy.read(learned, teacher=policy.terms['self_teacher'])
        without = torch.tensor([context is None for context in learned.context])
        assert without.any() and not without.all()
        assert not found.divergence[without].any() and not found.teacher_kl[without].any()
        assert (found.teacher_kl[~without].sum(1) > 0).all()
        share = policy.learn_mode.forward(groups(policy))['context_rows']
        assert share == pytest.approx(1 - without.float().mean().item())

    def test_no_row_has_a_context(self):
        policy = taught(context='sibling')
        before = weights(policy).clone()
        found = policy.learn_mode.forward(groups(policy, lambda *_: 0.))
        assert found['context_rows'] == found['teacher_loss'] == 0 and torch.equal(weights(policy), before)

    def test_micro_batches_change_nothing_but_memory(self):
        found = []
        for most in (None, 60):
            policy = taught(learn=dict(micro_batch_tokens=most))
            policy.learn_mode.forward(groups(policy))
            found.append(weights(policy))
        assert torch.allclose(*found, atol=1e-6)

    def test_beside_a_reward(self):
        plain = token_policy(env=ENV, entropy=dict(weight=0.))
        both = taught(learn=dict(advantage='outcome', adv_method='grpo'))
        reward = lambda group, row: float(row % 2)  # noqa: E731
        expected, found = (policy.learn_mode.forward(groups(policy, reward)) for policy in (plain, both))
        added = found['total_loss'] - expected['total_loss']
        assert added == pytest.approx(found['teacher_loss'], abs=1e-6) and found['teacher_loss'] > 1e-5
        assert found['grad_norm'] > 0.1

    def test_a_solution_that_cannot_be_encoded_is_left_out(self):
        policy = taught(context='sibling')
        batch = Batch.of(groups(policy))
        assert any(c is not None for c in context_of(policy, batch))
        batch.action[:] = ENV.tokenizer.unk_token_id
        assert context_of(policy, batch) == [None] * 8


class TestContext:

    def test_the_rows_of_a_group_are_shown_at_most_two_solutions_of_others(self):
        """So that their teacher reads few prompts; which rows may be shown is a test of random rows."""
        policy = taught(context='sibling', policy=dict(group_size=8))
        batch = Batch.of(groups(policy, lambda group, row: float(group == 0 or row == 2)))
        found, again = (context_of(policy, batch) for _ in range(2))
        assert 0 < len({tuple(c.tolist()) for c in found[:8] if c is not None}) <= 2
        assert found[8 + 2] is None  # the only right one has no other
        assert all(torch.equal(a, b) for a, b in zip(found, again) if a is not None)  # drawn by the seed

    def test_the_draw_depends_on_the_seed_the_collect_and_the_group(self):
        policy = taught(context='sibling', policy=dict(group_size=8))
        batch = Batch.of(groups(policy))

        def drawn(seed, collect, first=0):
            rows = ContextOfRows(self_teacher(policy.cfg.teacher), seed)
            rows.contexts = ENV.token_spec.contexts
            batch.collect_iter[:], batch.group_id[:] = collect, batch.group + first
            return str([None if c is None else c.tolist() for c in rows.find(batch)])

        assert drawn(0, 0) == drawn(0, 0) and len({drawn(seed, 0) for seed in range(5)}) > 1
        assert len({drawn(0, i) for i in range(5)}) > 1 and len({drawn(0, 0, i) for i in range(0, 10, 2)}) > 1

    def test_a_long_context_is_left_out(self):
        for most, known in ((2, False), (30, True)):
            policy = taught(most_tokens=most)
            assert all((c is not None) == known for c in context_of(policy, Batch.of(groups(policy))))

    def test_equal_rows_with_other_contexts_are_read_each(self):
        policy = taught(context='sibling')
        batch = Batch.of(groups(policy)).take(torch.tensor([0, 0, 0]))
        one, two = torch.tensor([5, 6]), torch.tensor([7])
        batch.context = [one, two, one]
        merged, kind = merge_equal_rows(batch)
        assert len(merged) == 2 and kind.tolist() == [0, 1, 0]

    @pytest.mark.parametrize(
        'place, expected', [
            ('before', '<s> user C question </s> <s>'),
            ('after', '<s> user question C </s> <s>'),
            ('turn', '<s> user question </s> <s> user C </s> <s>'),
        ]
    )
    def test_places_in_a_chat(self, tmp_path, place, expected):
        words = ['<s>', '</s>', 'user', 'question', 'C', 'answer']
        tokenizer = build_word_tokenizer(words)
        tokenizer.chat_template = (
            "{% for m in messages %}{{ '<s> ' + m['role'] + ' ' + m['content'] + ' </s> ' }}{% endfor %}<s>"
        )
        tokenizer.save_pretrained(tmp_path)

        class Asks(ThinkAnswerTask):

            def problem(self, index):
                return Problem([dict(role='user', content='question')], 'answer')

        env = TokenEnv(Asks(), tokenizer=dict(pretrained=str(tmp_path)), max_new_tokens=3)
        ids, = env.token_spec.contexts.prompts([(0, ' C ')], place)
        assert tokenizer.decode(ids) == expected


class TestTeacher:

    def test_a_mean_of_the_weights(self):
        policy = taught(self='ema', update_rate=0.25, learn=dict(learning_rate=1e-2))
        mean = weights(policy).clone()
        for collect in range(3):
            mean = torch.lerp(mean, weights(policy), 0.25)
            policy.learn_mode.forward(groups(policy, collect=collect))
        kept = policy.learn_mode.state_dict()['self_teacher']
        assert torch.allclose(vector(kept[name] for name, _ in policy.model.named_parameters()), mean, atol=1e-6)
        assert not torch.allclose(mean, weights(policy), atol=1e-3)

    @pytest.mark.parametrize('kind', ['live', 'ema', 'start'])
    def test_a_resumed_run_goes_on_bit_by_bit(self, kind):
        make = lambda: taught(self=kind, learn=dict(learning_rate=1e-2))  # noqa: E731
        policy = make()
        policy.learn_mode.forward(groups(policy))
        other = resumed(policy, make)
        samples = groups(policy, collect=1)
        for each in (policy, other):
            each.learn_mode.forward(copy.deepcopy(samples))
        assert torch.equal(weights(policy), weights(other))

    def test_the_start(self):
        policy = taught(self='start', learn=dict(learning_rate=1e-2))
        first = weights(policy).clone()
        for collect in range(2):
            policy.learn_mode.forward(groups(policy, collect=collect))
        kept = policy.learn_mode.state_dict()['self_teacher']
        assert torch.equal(vector(kept[name] for name, _ in policy.model.named_parameters()), first)

    def test_the_start_of_adapters_needs_no_copy(self, tmp_path):
        pytest.importorskip('peft')
        torch.manual_seed(7)
        CausalLM(config=small('think_answer_grpo')[0].policy.model.config).save_pretrained(str(tmp_path), ENV.tokenizer)
        policy = taught(self='start', policy=dict(model=dict(lora=dict(r=2))), base=tmp_path)
        for name, p in policy.model.named_parameters():
            if 'lora_B' in name:
                torch.nn.init.normal_(p, std=0.3)
        batch = policy.learning.to_learn(Batch.of(groups(policy)))
        expected = exact_kl(
            plain_logits(policy.model, batch),
            without_adapters(policy.model, lambda: plain_logits(policy.model, batch, batch.context))
        )
        found = policy.read(batch, teacher=policy.terms['self_teacher']).divergence
        assert torch.allclose(found, expected * batch.weight, atol=1e-5)
        assert 'self_teacher' not in policy.learn_mode.state_dict()


def without_adapters(model, read):
    with model.without_adapters():
        return read()


@pytest.mark.parametrize('kind', ['live', 'ema'])
def test_run(own_folder, kind):
    """From the collector to the checkpoint, through the environment's own contexts."""
    main, create = small('think_answer_grpo')
    main.policy.teacher = dict(BARE, self=kind, context=['sibling', 'reference'])
    train((main, create), updates=2)
    assert all(m['context_rows'] == 1 and m['teacher_loss'] > 0 for m in metrics())


REFUSED = {
    "policy.teacher.self = 'me': must be one of": dict(self='me'),
    'must have pretrained, a folder or a name, or, for': dict(context='feedback'),
    "policy.teacher.context = 'answer': must be one or several of": dict(self='live', context='answer'),
    'policy.teacher.context = []: must be one or several of': dict(self='live', context=[]),
    "policy.teacher.place = 'inside': must be one of": dict(self='live', place='inside'),
    "policy.teacher.solution = 'The answer.': must be a text with {solu": dict(self='live', solution='The answer.'),
    "policy.teacher.feedback = '{solution}': must be a text with {feed": dict(self='live', feedback='{solution}'),
    'policy.teacher.update_rate = 0: must be': dict(self='live', update_rate=0),
    "policy.teacher.preset = 'spdo': must be one of": dict(preset='spdo'),
    "policy.teacher.contxt = 'feedback': unknown key; did you mean 'context'": dict(self='live', contxt='feedback'),
    'policy.teacher.most_tokens = 100000: policy.model has positions for 39 tokens': dict(
        self='live', most_tokens=100000
    ),
}


@pytest.mark.parametrize('words', REFUSED)
def test_refused(words):
    with refused(re.escape(words)):
        token_policy(dict(teacher=REFUSED[words]), env=ENV, **ALONE)


def test_texts_that_are_not_used_need_no_tokens():
    assert taught(context='reference', feedback='wrong: {feedback}').terms['self_teacher']
    with pytest.raises(ConfigError, match='it has no token for'):
        taught(context='feedback', feedback='wrong: {feedback}')


@pytest.mark.parametrize('texts', [dict(solution='right: {solution}'), dict(place='turn')], ids=str)
def test_texts_that_cannot_be_read_are_told_before_anything_is_sampled(texts):
    with pytest.raises(ConfigError, match="it has no token for .*right|has no chat template"):
        taught(**texts)
