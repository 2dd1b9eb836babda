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
from tests.extras.plain import assert_step, plain_logits, refused
from tests.policies import ALONE, sample_groups, token_policy, update, vector, weights
from tests.shipped import small


def by_row(group, row):
    return float(row)


def model_config(**config):
    return dict(small('think_answer_grpo')[0].policy.model.config, **config)


def save(path, tokenizer, words=32):
    torch.manual_seed(7)
    model = CausalLM(config=model_config(hidden_size=64, vocab_size=words))
    with torch.no_grad():
        model.lm.get_output_embeddings().weight.mul_(10)  # far from uniform
    model.save_pretrained(str(path), tokenizer)
    return str(path)


@pytest.fixture
def folder(tmp_path):
    """A teacher of twice the width of the policy, with the tokenizer of the task."""
    return save(tmp_path / 'teacher', TokenEnv().tokenizer)


def taught(folder, policy={}, teacher={}, distillation={}, **learn):
    if folder is not None:
        policy = dict(policy, teacher=dict(teacher, pretrained=folder))
    return token_policy(policy, **dict(ALONE, **learn), distillation=distillation)


def teacher_of(policy):
    return policy.terms['teacher'].teacher


class TestAlone:

    def test_the_gradient_is_that_of_the_plain_kl(self, folder):
        """Over the whole vocabulary, on rows of the policy, from logits that transformers computes row by row."""
        policy = taught(folder, learning_rate=1e-9, weight_decay=0.)
        teacher, batch = teacher_of(policy).model, Batch.of(sample_groups(policy))
        assert teacher.output_tokens == policy.model.output_tokens == len(TokenEnv().tokenizer)
        kl = exact_kl(*(plain_logits(model, batch) for model in (policy.model, teacher)))
        expected = sequence_mean(kl, batch.weight)
        metrics = assert_step(policy, policy.learning.to_learn(batch), expected)
        for name in ('teacher_loss', 'total_loss'):
            assert metrics[name] == pytest.approx(expected.item(), abs=1e-6) and expected > 0.01
        assert 'teacher_kl' in policy.learn_mode.monitor_vars()

    @pytest.mark.parametrize(
        'divergence, exact', [
            ('reverse_kl', True),
            ('reverse_kl', False),
            *(long(name, exact) for name in ('forward_kl', 'jsd') for exact in (True, False)),
        ]
    )
    def test_the_policy_approaches_the_teacher(self, folder, divergence, exact):
        policy = taught(folder, distillation=dict(divergence=divergence, exact=exact), learning_rate=1e-2)
        before = vector(teacher_of(policy).model.parameters()).clone()
        kls = [update(policy, [0, 1, 2, 3], None, collect=i)['teacher_kl'] for i in range(20)]
        # 64 tokens an update are few for an estimate
        assert sum(kls[-4:]) < (0.5 if exact else 0.85) * sum(kls[:4]) and kls[0] > 1
        assert torch.equal(vector(teacher_of(policy).model.parameters()), before)

    def test_rows_of_groups_of_one_without_a_reward(self, folder):
        found = []
        for value in (0., 5.):
            policy = taught(folder, dict(group_size=1), batch_groups=4)
            metrics = update(policy, [0, 1, 2, 3], lambda group, row: value * group)
            found.append(weights(policy))
            assert metrics['optimizer_steps'] == 1 and metrics['policy_loss'] == 0 == metrics['equal_groups']
        assert torch.equal(*found)  # whatever the reward is


class TestBeside:

    def test_loss_and_weight_add_up(self, folder):
        learn = dict(advantage='outcome', entropy=dict(weight=0.01))
        plain = update(taught(None, **learn), reward=by_row)
        assert 'teacher_loss' not in plain
        found = {}
        for weight in (0.5, 2.):
            found[weight] = metrics = update(taught(folder, distillation=dict(weight=weight), **learn), reward=by_row)
            added = metrics['total_loss'] - plain['total_loss']
            assert added == pytest.approx(weight * metrics['teacher_loss'], abs=1e-6)
            assert metrics['policy_loss'] == plain['policy_loss']
        assert found[0.5]['teacher_loss'] == found[2.]['teacher_loss'] > 0

    @pytest.mark.parametrize('loss', [long('grpo'), long('dapo'), 'clip_cov'])
    def test_micro_batches_change_nothing_but_memory(self, folder, loss):
        """Of a teacher, a critic and demonstrations together."""
        found = []
        for most in (None, 60):
            learn = dict(loss=loss, advantage='gae', demonstrations=dict(share=1.))
            policy = taught(folder, micro_batch_tokens=most, **learn)
            metrics = update(policy, reward=by_row)
            assert min(metrics[name] for name in ('teacher_kl', 'value_loss', 'demonstration_nll')) > 0
            found.append(torch.cat([weights(policy), vector(policy.terms['critic'].critic.parameters())]))
        assert torch.allclose(*found, atol=1e-6)

    def test_adapters(self, folder):
        pytest.importorskip('peft')
        policy = dict(teacher=dict(pretrained=folder), model=dict(lora=dict(r=2)))
        metrics = update(token_policy(policy, base=folder, **ALONE), reward=None)
        assert metrics['teacher_kl'] == pytest.approx(0, abs=1e-6)  # adapters begin at 0: the policy is the teacher


def other_words(folder, order):
    """The same model under a tokenizer with the words in another order, and two words more."""
    tokenizer = build_word_tokenizer(order)
    torch.manual_seed(7)
    source = CausalLM(pretrained=folder)
    size, config = len(tokenizer), source.lm.config.to_diff_dict()
    model = CausalLM(config=dict({key: config[key] for key in model_config()}, vocab_size=size))
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


class TestOtherVocabulary:

    def test_the_same_tokens_in_another_order(self, folder, capsys):
        """Ids were compared, not tokens."""
        words = sorted(TokenEnv().task.words, reverse=True)
        policy, moved = taught(folder), taught(other_words(folder, ['zebra', *words, 'yak']))
        assert 'has another vocabulary' in capsys.readouterr().out
        groups = sample_groups(policy)
        found = [p.learn_mode.forward(copy.deepcopy(groups)) for p in (policy, moved)]
        assert found[0]['teacher_kl'] == pytest.approx(found[1]['teacher_kl'], abs=1e-5) and found[0]['teacher_kl'] > 0
        assert torch.allclose(weights(policy), weights(moved), atol=1e-5)

    def test_a_row_counts_up_to_its_first_unknown_token(self, folder):
        env = TokenEnv()
        words = sorted(env.task.words, reverse=True)
        left_out = next(w for w in words if all(w not in env.task.problem(i).text.split() for i in range(4)))
        words.remove(left_out)
        policy = taught(other_words(folder, words))
        batch = Batch.of(sample_groups(policy))
        unknown = env.tokenizer.get_vocab()[left_out]
        batch.action[0, 2] = unknown
        batch.action[1:] = torch.where(batch.action[1:] == unknown, unknown - 1, batch.action[1:])
        reading = policy.read(batch, teacher=teacher_of(policy))
        expected = batch.weight.clone()
        expected[0, 3:] = 0
        assert torch.equal((reading.divergence != 0).float(), expected)

    def test_too_little_in_common(self, tmp_path):
        other = save(tmp_path, build_word_tokenizer(['zebra', 'yak']))
        with pytest.raises(ConfigError, match='tokens of env.tokenizer are in its vocabulary'):
            taught(other, distillation=dict(exact=False))

    def test_a_folder_without_a_tokenizer(self, tmp_path, capsys):
        """Its ids are taken for those of the policy."""
        bare, known = save(tmp_path / 'bare', None), save(tmp_path / 'known', TokenEnv().tokenizer)
        found = [update(taught(path), reward=None)['teacher_kl'] for path in (bare, known)]
        assert capsys.readouterr().out.count('no tokenizer could be loaded') == 1
        assert found[0] == found[1] > 0
        with pytest.raises(ConfigError, match='has no tokenizer and 8 tokens, the policy has'):
            taught(save(tmp_path / 'small', None, 8))


class TestConfig:

    @pytest.mark.parametrize(
        'changes, message', [
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
        with refused(message):
            taught(folder, **changes)

    def test_a_missing_or_short_teacher(self, tmp_path):
        with pytest.raises(ConfigError, match="policy.teacher.pretrained = 'nowhere/here'"):
            taught('nowhere/here')
        config = model_config(max_position_embeddings=8)
        CausalLM(config=config).save_pretrained(str(tmp_path), TokenEnv().tokenizer)
        with pytest.raises(ConfigError, match='has 8 positions, but rows may have'):
            taught(str(tmp_path))
