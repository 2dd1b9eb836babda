"""Parts of the reward from sequence-classification models."""
import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, LlamaConfig, LlamaForSequenceClassification

from ding_common import ConfigError
from dizoo_llm.envs import TokenEnv
from dizoo_llm.models import reward_model
from dizoo_llm.models.reward_model import RewardModel
from dizoo_llm.tasks import Problem, ThinkAnswerTask
from dizoo_llm.text.tokenizer import build_word_tokenizer

TASK = ThinkAnswerTask()
COMPLETIONS = ['9 </think> <answer> 3 </answer>', '3', '1 2 3 4 5', '']
TEMPLATE = "{% for m in messages %}{{ m['role'][0] + ' ' + m['content'] + ' ' }}{% endfor %}"


def save_model(folder, num_labels=1, template=None, seed=0, **changes):
    tokenizer = build_word_tokenizer([*TASK.words, 'u', 'a'])
    tokenizer.chat_template = template
    torch.manual_seed(seed)
    shape = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    config = LlamaConfig(vocab_size=len(tokenizer), num_labels=num_labels, **dict(shape, **changes))
    config.pad_token_id = tokenizer.pad_token_id
    LlamaForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder), tokenizer


def rows(number=4):
    return [TASK.problem(i % 4) for i in range(number)], [COMPLETIONS[i % 4] for i in range(number)]


@pytest.mark.unittest
class TestRewardModel:

    @pytest.mark.parametrize('batch_size', [1, 3, 32])
    def test_is_what_the_model_gives_for_each_row_alone(self, tmp_path, batch_size):
        folder, tokenizer = save_model(tmp_path)
        problems, completions = rows(7)
        scores = RewardModel(dict(pretrained=folder, batch_size=batch_size)).scores(problems, completions)
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        for problem, completion, score in zip(problems, completions, scores):
            ids = tokenizer(f'{problem.prompt} {completion} <eos>', return_tensors='pt').input_ids
            assert score == pytest.approx(model(ids).logits.item(), abs=1e-6)
        ordered = sorted(scores)
        assert sum(high - low > 1e-5 for low, high in zip(ordered, ordered[1:])) == 3  # four values, up to rounding

    def test_reads_a_dialogue_through_its_own_chat_template(self, tmp_path):
        folder, tokenizer = save_model(tmp_path, template=TEMPLATE)
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        messages = [
            dict(role='user', content='1 2'),
            dict(role='assistant', content='3'),
            dict(role='user', content='4')
        ]
        for prompt, text in (('1 2', 'u 1 2 a 5 '), (messages, 'u 1 2 a 3 u 4 a 5 ')):
            score, = RewardModel(dict(pretrained=folder)).scores([Problem(prompt)], ['5'])
            expected = model(tokenizer(text, return_tensors='pt').input_ids).logits.item()
            assert score == pytest.approx(expected, abs=1e-6)
        plain, = RewardModel(dict(pretrained=folder, chat=False)).scores([Problem('1 2')], ['5'])
        assert plain == pytest.approx(
            model(tokenizer('1 2 5 <eos>', return_tensors='pt').input_ids).logits.item(), abs=1e-6
        )

    def test_is_loaded_once_until_it_changes(self, tmp_path, monkeypatch):
        folder, _ = save_model(tmp_path)
        loads, load = [], reward_model.load_reward_model
        monkeypatch.setattr(reward_model, 'load_reward_model', lambda *args: loads.append(1) or load(*args))
        first = RewardModel(dict(pretrained=folder)).scores(*rows())
        for _ in range(3):
            assert RewardModel(dict(pretrained=folder)).scores(*rows()) == first
        assert len(loads) == 1
        save_model(tmp_path, seed=1)
        assert RewardModel(dict(pretrained=folder)).scores(*rows()) != first
        assert len(loads) == 2

    def test_whitening_is_over_the_rows_of_a_call(self, tmp_path):
        folder, _ = save_model(tmp_path)
        plain = RewardModel(dict(pretrained=folder)).scores(*rows())
        white = RewardModel(dict(pretrained=folder, whiten=True)).scores(*rows())
        assert np.allclose(white, (np.array(plain) - np.mean(plain)) / (np.std(plain) + 1e-4))

    def test_evaluations_are_not_whitened(self, tmp_path):
        """Whitened, the mean of each evaluation is 0, whatever the policy writes."""
        folder, _ = save_model(tmp_path)
        options = dict(max_new_tokens=4, reward_models=[dict(pretrained=folder, whiten=True)])
        plain = RewardModel(dict(pretrained=folder)).scores(*rows())
        for evaluation, expected in ((True, plain), (False, RewardModel(options['reward_models'][0]).scores(*rows()))):
            scores = TokenEnv(TASK, evaluation=evaluation, **options).scoring.scores(*rows())
            assert [parts['reward_model'] for parts in scores] == pytest.approx(expected)

    def test_a_completion_alone_is_not_whitened(self, tmp_path):
        """It would be 0."""
        folder, _ = save_model(tmp_path)
        for whiten in (False, True):
            env = TokenEnv(TASK, max_new_tokens=1, reward_models=[dict(pretrained=folder, whiten=whiten)])
            env.reset(seed=0)
            failed = env.step(3)[-1]['failed']
            assert (
                failed is not None and "whiten = True of 'reward_model' needs several completions" in failed
            ) == whiten

    def test_what_cannot_be_read_costs_its_row(self, tmp_path):
        folder, _ = save_model(tmp_path)
        most = 30
        scores = RewardModel(dict(pretrained=folder, max_length=most)).scores(*[x[:2] for x in rows()])
        long = RewardModel(dict(pretrained=folder, max_length=most)).scores([TASK.problem(0)], ['1 ' * 40])
        assert not any(isinstance(score, Exception) for score in scores)
        assert 'more than 30' in str(long[0])
        env = TokenEnv(TASK, reward_models=[dict(pretrained=folder, max_length=most)])
        entries = env.scoring.scores([TASK.problem(0)] * 2, ['1 ' * 40, '1'])
        assert 'more than 30' in str(entries[0]) and math.isfinite(entries[1]['reward_model'])

    @pytest.mark.parametrize(
        'model, cfg, message', [
            (dict(num_labels=2), {}, 'the model has 2 labels, a reward model has 1'),
            (None, dict(pretrained='nowhere'), "reward_models.pretrained = 'nowhere': "),
            ({}, dict(device='cuda:99'), 'reward_models.device'),
        ]
    )
    def test_a_model_that_cannot_be_loaded(self, tmp_path, model, cfg, message):
        folder = save_model(tmp_path, **model)[0] if model is not None else ''
        with pytest.raises(ConfigError, match=message):
            RewardModel(dict(dict(pretrained=folder), **cfg)).scores(*rows())

    def test_a_language_model_lacks_the_head(self, tmp_path):
        from transformers import LlamaForCausalLM
        folder, _ = save_model(tmp_path)
        config = LlamaConfig.from_pretrained(folder)
        config.architectures = None
        LlamaForCausalLM(config).save_pretrained(folder)
        with pytest.raises(ConfigError, match="weights that its config.json requires are missing.*'score.weight'"):
            RewardModel(dict(pretrained=folder)).scores(*rows())

    @pytest.mark.parametrize(
        'cfg, message', [
            (dict(pretrained=''), r"pretrained = ''"), (dict(pretrained='x', wieght=1), 'wieght'),
            (dict(pretrained='x', weight='1'), "weight = '1'"), (dict(pretrained='x', device='gpu'), "device = 'gpu'"),
            (dict(), 'pretrained')
        ],
        ids=str
    )
    def test_wrong_keys(self, cfg, message):
        with pytest.raises(ConfigError, match=r'env.reward_models\[0\].*' + message):
            TokenEnv(TASK, reward_models=[cfg])


@pytest.mark.unittest
class TestRewardedTask:

    def test_has_the_parts_of_both(self, tmp_path):
        folder, _ = save_model(tmp_path)
        env = TokenEnv(max_new_tokens=10, reward_models=[dict(pretrained=folder, weight=0.25)])
        assert env.weights == dict(answer=1., format=0.5, solved=0.5, reward_model=0.25)
        env.reset(options=dict(index=0))
        ids = env.encode_answer(COMPLETIONS[0])
        _, reward, _, _, info = env.step(ids)
        score, = RewardModel(dict(pretrained=folder)).scores([TASK.problem(0)], [COMPLETIONS[0]])
        assert info['reward_parts'] == dict(answer=1., format=1., solved=1., reward_model=pytest.approx(score))
        assert reward == pytest.approx(2 + 0.25 * score) and info['return'] == 1

    def test_weights_of_a_config_replace_the_tasks(self, tmp_path):
        folder, _ = save_model(tmp_path)
        only = dict(answer=0, format=0., solved=0.)
        env = TokenEnv(max_new_tokens=10, reward_models=[dict(pretrained=folder)], reward_weights=only)
        env.reset(options=dict(index=0))
        _, reward, _, _, info = env.step(env.encode_answer(COMPLETIONS[0]))
        assert reward == pytest.approx(info['reward_parts']['reward_model'])
        assert info['return'] == 1 == info['reward_parts']['answer'] and env.token_spec.reward_weights['answer'] == 0
        with pytest.raises(ConfigError, match="env.reward_weights.anwser = 1: .*'answer'"):
            TokenEnv(reward_weights=dict(anwser=1))
        with pytest.raises(ConfigError, match="env.reward_weights.answer = '1': must be"):
            TokenEnv(reward_weights=dict(answer='1'))

    def test_two_models_need_two_names(self, tmp_path):
        folder, _ = save_model(tmp_path)
        two = [dict(pretrained=folder), dict(pretrained=folder, name='other', weight=-1.)]
        assert set(TokenEnv(TASK, reward_models=two).weights) == {*TASK.weights, 'reward_model', 'other'}
        for name in ('reward_model', 'answer'):
            with pytest.raises(ConfigError, match=f'the name {name!r} occurs twice'):
                TokenEnv(TASK, reward_models=[two[0], dict(two[1], name=name)])

    def test_a_failure_of_the_task_stays_a_failure(self, tmp_path, monkeypatch):
        folder, _ = save_model(tmp_path)
        monkeypatch.setattr(ThinkAnswerTask, 'score', lambda *args: 1 / 0)
        entries = TokenEnv(reward_models=[dict(pretrained=folder)]).scoring.scores(*rows(2))
        assert all('ZeroDivisionError' in str(entry) for entry in entries)
