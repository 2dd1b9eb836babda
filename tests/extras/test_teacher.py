"""``policy.teacher``: the policy learns from another model's distributions on its own rows."""
import copy

import pytest
import torch

from ding_common import ConfigError
from ding_grpo.data.batch import Batch
from ding_grpo.model import CausalLM
from ding_grpo.rl_utils import exact_kl, sequence_mean
from dizoo_llm.envs import TokenEnv
from dizoo_llm.text.tokenizer import build_word_tokenizer
from tests.cases import long
from tests.policies import make_policy, sample_groups
from tests.act.test_step_actor import DISCRETE, make
from tests.shipped import small

ALONE = dict(advantage='none', adv_method=None, entropy_weight=0.)


@pytest.fixture
def folder(tmp_path):
    """A teacher of twice the width of the policy, with the tokenizer of the task."""
    return save(tmp_path / 'teacher', TokenEnv().tokenizer)


def save(path, tokenizer, words=None, **config):
    torch.manual_seed(7)
    config = dict(small('think_answer_grpo')[0].policy.model.config, hidden_size=64, vocab_size=words or 32, **config)
    model = CausalLM(config=config)
    with torch.no_grad():
        model.lm.get_output_embeddings().weight.mul_(10)  # far from uniform
    model.save_pretrained(str(path), tokenizer)
    return str(path)


def taught(folder, group_size=None, distillation={}, teacher={}, collect={}, **learn):
    main, create = small('think_answer_grpo')
    main.policy.teacher = None if folder is None else dict(teacher, pretrained=folder)
    main.policy.learn.update(dict(ALONE, **learn), distillation=distillation)
    main.policy.collect.update(collect)
    if group_size is not None:
        main.policy.group_size = group_size
    return make_policy(main, create)


def weights(policy):
    return torch.cat([p.detach().flatten() for p in policy._model.parameters()])


def plain_logits(model, batch, size):
    """(B, S, V) with each row read alone by ``transformers``."""
    found = torch.zeros(*batch.action.shape, size)
    for row, prompt in enumerate(batch.prompts):
        ids = torch.cat([prompt, batch.action[row, :batch.length[row]]])
        logits = model.lm(ids.unsqueeze(0)).logits[0, len(prompt) - 1:-1, :size]
        found[row, :batch.length[row]] = logits
    return found


@pytest.mark.unittest
class TestAlone:

    def test_the_gradient_is_that_of_the_plain_kl(self, folder):
        """Over the whole vocabulary, on rows of the policy, from logits that transformers computes row by row."""
        policy = taught(folder, learning_rate=1e-9, weight_decay=0.)
        batch = Batch.of(sample_groups(policy, [0, 1]))
        vocabulary = len(TokenEnv().tokenizer)
        assert policy._learning.terms['teacher'].teacher.model.output_tokens == vocabulary
        teacher = policy._learning.terms['teacher'].teacher.model
        kl = exact_kl(*(plain_logits(m, batch, vocabulary) for m in (policy._model, teacher)))
        expected = sequence_mean(kl, batch.weight)
        gradients = torch.autograd.grad(expected, list(policy._model.parameters()))
        metrics = policy._learning.updater.step(policy._learning.to_learn(batch))
        clipped = min(1, policy.cfg.learn.grad_clip_value / metrics['grad_norm'])
        for p, g in zip(policy._model.parameters(), gradients):
            assert torch.allclose(p.grad, g * clipped, atol=1e-6)
        assert metrics['teacher_loss'] == pytest.approx(expected.item(), abs=1e-6)
        assert metrics['total_loss'] == pytest.approx(expected.item(), abs=1e-6) and expected > 0.01
        assert 'teacher_kl' in policy._monitor_vars_learn()

    @pytest.mark.parametrize(
        'divergence, exact', [
            ('reverse_kl', True),
            ('reverse_kl', False),
            *(long(name, exact) for name in ('forward_kl', 'jsd') for exact in (True, False)),
        ]
    )
    def test_the_policy_approaches_the_teacher(self, folder, divergence, exact):
        policy = taught(folder, distillation=dict(divergence=divergence, exact=exact), learning_rate=1e-2)
        before = copy.deepcopy(policy._learning.terms['teacher'].teacher.model.state_dict())
        kls = [
            policy.learn_mode.forward(sample_groups(policy, [0, 1, 2, 3], collect=i))['teacher_kl'] for i in range(20)
        ]
        # 64 tokens an update are few for an estimate
        assert sum(kls[-4:]) < (0.5 if exact else 0.85) * sum(kls[:4]) and kls[0] > 1
        assert all(
            torch.equal(x, before[name])
            for name, x in policy._learning.terms['teacher'].teacher.model.state_dict().items()
        )

    def test_rows_of_groups_of_one_without_a_reward(self, folder):
        policy = taught(folder, group_size=1, batch_size=4)
        found = []
        for value in (0., 5.):
            torch.manual_seed(0)
            policy = taught(folder, group_size=1, batch_size=4)
            groups = sample_groups(policy, [0, 1, 2, 3], reward=lambda group, row: value * group)
            metrics = policy.learn_mode.forward(groups)
            found.append(weights(policy))
            assert metrics['optimizer_steps'] == 1 and metrics['policy_loss'] == 0 == metrics['equal_groups']
        assert torch.equal(*found)  # whatever the reward is


@pytest.mark.unittest
class TestBeside:

    def test_loss_and_weight_add_up(self, folder):
        found = {}
        for weight in (None, 0.5, 2.):
            policy = taught(
                folder if weight else None,
                distillation=dict(weight=weight) if weight else {},
                advantage='outcome',
                entropy_weight=0.01
            )
            groups = sample_groups(policy, [0, 1], reward=lambda group, row: float(row))
            found[weight] = policy.learn_mode.forward(groups)
        kl = found[2.]['teacher_loss']
        assert found[0.5]['teacher_loss'] == kl > 0 and 'teacher_loss' not in found[None]
        for weight in (0.5, 2.):
            added = found[weight]['total_loss'] - found[None]['total_loss']
            assert added == pytest.approx(weight * kl, abs=1e-6)
            assert found[weight]['policy_loss'] == found[None]['policy_loss']

    def test_micro_batches_change_nothing_but_memory(self, folder):
        found = []
        for most, loss in ((None, 'dapo'), (60, 'dapo'), (None, 'kl_cov'), (60, 'kl_cov')):
            policy = taught(folder, micro_batch_tokens=most, loss=loss, advantage='outcome')
            policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=lambda group, row: float(row)))
            found.append(weights(policy))
        assert torch.allclose(found[0], found[1], atol=1e-6) and torch.allclose(found[2], found[3], atol=1e-6)

    def test_a_critic_and_adapters(self, folder):
        pytest.importorskip('peft')
        policy = taught(folder, advantage='gae')
        metrics = policy.learn_mode.forward(sample_groups(policy, [0, 1]))
        assert metrics['value_loss'] >= 0 and metrics['teacher_kl'] > 0
        main, create = small('think_answer_grpo')
        main.policy.teacher = dict(pretrained=folder)
        main.policy.learn.update(ALONE)
        main.policy.model = dict(pretrained=folder, lora=dict(r=2))
        policy = make_policy(main, create)
        metrics = policy.learn_mode.forward(sample_groups(policy, [0, 1]))
        assert metrics['teacher_kl'] == pytest.approx(0, abs=1e-6)  # adapters begin at 0: the policy is the teacher


def other_words(folder, order):
    """The same model under a tokenizer with the words in another order, and two words more."""
    tokenizer = build_word_tokenizer(order)
    torch.manual_seed(7)
    source = CausalLM(pretrained=folder)
    size = len(tokenizer)
    config = dict(source.lm.config.to_diff_dict(), vocab_size=size)
    config = {key: config[key] for key in small('think_answer_grpo')[0].policy.model.config}
    model = CausalLM(config=config)
    own, ids = TokenEnv().tokenizer.get_vocab(), tokenizer.get_vocab()
    state = {name: x.clone() for name, x in source.state_dict().items()}
    for name in ('lm.model.embed_tokens.weight', 'lm.lm_head.weight'):
        moved = torch.zeros(size, state[name].shape[1])
        for token, i in ids.items():
            if token in own:
                moved[i] = state[name][own[token]]
        state[name] = moved
    model.load_state_dict(state)
    model.save_pretrained(f'{folder}_other', tokenizer)
    return f'{folder}_other'


@pytest.mark.unittest
class TestOtherVocabulary:

    def test_the_same_tokens_in_another_order(self, folder, capsys):
        """Ids were compared, not tokens."""
        words = sorted(TokenEnv().task.words, reverse=True)
        policy, moved = taught(folder), taught(other_words(folder, ['zebra', *words, 'yak']))
        assert 'has another vocabulary' in capsys.readouterr().out
        groups = sample_groups(policy, [0, 1])
        found = [p.learn_mode.forward(copy.deepcopy(groups)) for p in (policy, moved)]
        assert found[0]['teacher_kl'] == pytest.approx(found[1]['teacher_kl'], abs=1e-5) and found[0]['teacher_kl'] > 0
        assert torch.allclose(weights(policy), weights(moved), atol=1e-5)

    def test_a_row_counts_up_to_its_first_unknown_token(self, folder):
        env = TokenEnv()
        words = sorted(env.task.words, reverse=True)
        left_out = next(w for w in words if all(w not in env.task.problem(i).text.split() for i in range(4)))
        words.remove(left_out)
        policy = taught(other_words(folder, words))
        batch = Batch.of(sample_groups(policy, [0, 1]))
        unknown = env.tokenizer.get_vocab()[left_out]
        batch.action[0, 2] = unknown
        batch.action[1:] = torch.where(batch.action[1:] == unknown, unknown - 1, batch.action[1:])
        reading = policy._actor.read(policy._model, batch, teacher=policy._learning.terms['teacher'].teacher)
        expected = batch.weight.clone()
        expected[0, 3:] = 0
        assert torch.equal((reading.divergence != 0).float(), expected)

    def test_too_little_in_common(self, tmp_path):
        other = save(tmp_path / 'other', build_word_tokenizer(['zebra', 'yak']))
        with pytest.raises(ConfigError, match='tokens of env.tokenizer are in its vocabulary'):
            taught(other, distillation=dict(exact=False))

    def test_a_folder_without_a_tokenizer(self, tmp_path, capsys):
        policy = taught(save(tmp_path / 'bare', None))
        assert 'no tokenizer could be loaded' in capsys.readouterr().out
        assert policy._learning.terms['teacher'].teacher._ids is None
        with pytest.raises(ConfigError, match='has no tokenizer and 8 tokens, the policy has'):
            taught(save(tmp_path / 'small', None, 8))


@pytest.mark.unittest
class TestConfig:

    @pytest.mark.parametrize(
        'changes, message', [
            (dict(folder=None), "policy.learn.advantage = 'none': nothing would be learned"),
            (dict(folder=None, advantage='outcome', distillation=dict(mix=0.2)), 'distillation.mix = 0.2: only avail'),
            (dict(distillation=dict(divergence='kl')), "must be one of 'reverse_kl', 'forward_kl', 'jsd'"),
            (dict(distillation=dict(mix=1.)), r'a number in \(0, 1\)'),
            (dict(distillation=dict(weight=0)), r'distillation.weight = 0: must be a number in \(0'),
            (dict(teacher=dict(lora=dict(r=2))), 'policy.teacher.lora = .*the teacher is not trained'),
            (dict(teacher=dict(layers=2)), 'policy.teacher.layers = 2'),
            (dict(collect=dict(top_k=4)), 'policy.collect.top_k = 4: must be None with policy.teacher'),
            (dict(log_prob_fn='naive_method'), "policy.learn.log_prob_fn = 'naive_method': must be 'linear_log_prob'"),
            (dict(adv_method='no_std'), "policy.learn.adv_method = 'no_std': must be None with .*'none'"),
            (dict(drop_equal_groups=True), 'policy.learn.drop_equal_groups = True: must be False'),
        ],
        ids=str
    )
    def test_one_line_for_a_wrong_one(self, folder, changes, message):
        with pytest.raises(ConfigError, match=message) as caught:
            taught(**dict(dict(folder=folder), **changes))
        assert '\n' not in str(caught.value)

    def test_a_missing_or_short_teacher(self, tmp_path):
        with pytest.raises(ConfigError, match="policy.teacher.pretrained = 'nowhere/here'"):
            taught('nowhere/here')
        config = dict(small('think_answer_grpo')[0].policy.model.config, max_position_embeddings=8)
        CausalLM(config=config).save_pretrained(str(tmp_path / 'short'), TokenEnv().tokenizer)
        with pytest.raises(ConfigError, match='has 8 positions, but rows may have'):
            taught(str(tmp_path / 'short'))

    def test_other_models(self, folder):
        with pytest.raises(ConfigError, match='policy.teacher = .*only available for language models'):
            make(DISCRETE, teacher=dict(pretrained=folder))

    def test_without_one_nothing_is_computed(self):
        policy = taught(None, advantage='outcome')
        assert 'teacher' not in policy._learning.terms and 'teacher_kl' not in policy._monitor_vars_learn()
        assert 'teacher_kl' not in policy.learn_mode.forward(sample_groups(policy, [0, 1]))
