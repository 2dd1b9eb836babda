"""Parts of the reward from sequence-classification models."""
import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, LlamaConfig, LlamaForCausalLM, \
    LlamaForSequenceClassification

from ding_common import ConfigError
from dizoo_llm.envs import TokenEnv
from dizoo_llm.models.reward_model import RewardModel
from dizoo_llm.tasks import Problem, ThinkAnswerTask
from dizoo_llm.text.tokenizer import build_word_tokenizer
from tests.dizoo_llm.helper import Prompts, play

TASK = ThinkAnswerTask()
COMPLETIONS = ['9 </think> <answer> 3 </answer>', '3', '1 2 3 4 5', '']
TEMPLATE = "{% for m in messages %}{{ m['role'][0] + ' ' + m['content'] + ' ' }}{% endfor %}"
ROWS = [TASK.problem(i) for i in range(4)], COMPLETIONS


def save_model(folder, num_labels=1, template=None, seed=0, kind=LlamaForSequenceClassification, **changes):
    tokenizer = build_word_tokenizer([*TASK.words, 'u', 'a'])
    tokenizer.chat_template = template
    torch.manual_seed(seed)
    shape = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    config = LlamaConfig(vocab_size=len(tokenizer), num_labels=num_labels, **dict(shape, **changes))
    config.pad_token_id = tokenizer.pad_token_id
    kind(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder), tokenizer


def scores(folder, problems=ROWS[0], completions=COMPLETIONS, **options):
    return RewardModel(dict(pretrained=folder, **options)).scores(problems, completions)


def alone(folder, text):
    """What the model gives for one text."""
    tokenizer = build_word_tokenizer([*TASK.words, 'u', 'a'])
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    return pytest.approx(model(tokenizer(text, return_tensors='pt').input_ids).logits.item(), abs=1e-6)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp('model'))[0]


class TestRewardModel:

    def test_is_what_the_model_gives_for_each_row_alone(self, folder):
        problems, completions = ROWS[0] + ROWS[0][:3], COMPLETIONS + COMPLETIONS[:3]
        found = scores(folder, problems, completions, batch_size=3)
        for problem, completion, score in zip(problems, completions, found):
            assert score == alone(folder, f'{problem.prompt} {completion} <eos>')
        ordered = sorted(found)
        assert sum(high - low > 1e-5 for low, high in zip(ordered, ordered[1:])) == 3  # four values, up to rounding

    def test_reads_a_dialogue_through_its_own_chat_template(self, tmp_path):
        folder, _ = save_model(tmp_path, template=TEMPLATE)
        messages = [dict(role=r, content=c) for r, c in (('user', '1 2'), ('assistant', '3'), ('user', '4'))]
        for prompt, options, text in (
            ('1 2', dict(), 'u 1 2 a 5 '),
            (messages, dict(), 'u 1 2 a 3 u 4 a 5 '),
            ('1 2', dict(chat=False), '1 2 5 <eos>'),
        ):
            assert scores(folder, [Problem(prompt)], ['5'], **options) == [alone(folder, text)]

    def test_a_model_that_has_changed_is_loaded_again(self, tmp_path):
        first, again, other = (scores(save_model(tmp_path, seed=seed)[0]) for seed in (0, 0, 1))
        assert first == again != other

    def test_whitening_is_over_the_rows_of_a_call_but_not_of_evaluations(self, folder):
        """Whitened, the mean of each evaluation is 0, whatever the policy writes."""
        plain, white = scores(folder), scores(folder, whiten=True)
        assert np.allclose(white, (np.array(plain) - np.mean(plain)) / (np.std(plain) + 1e-4))
        for evaluation, expected in ((True, plain), (False, white)):
            options = dict(evaluation=evaluation, reward_models=[dict(pretrained=folder, whiten=True)])
            found = TokenEnv(TASK, max_new_tokens=4, **options).scoring.scores(*ROWS)
            assert [parts['reward_model'] for parts in found] == pytest.approx(expected)

    def test_a_completion_alone_is_not_whitened(self, folder):
        """It would be 0."""
        env = TokenEnv(TASK, max_new_tokens=1, reward_models=[dict(pretrained=folder, whiten=True)])
        assert "whiten = True of 'reward_model' needs several completions" in play(env, 3)[0][-1]['failed']

    def test_what_cannot_be_read_costs_its_row(self, folder):
        model = dict(pretrained=folder, max_length=30)
        entries = TokenEnv(TASK, reward_models=[model]).scoring.scores([TASK.problem(0)] * 2, ['1 ' * 40, '1'])
        assert 'more than 30' in str(entries[0]) and math.isfinite(entries[1]['reward_model'])

    @pytest.mark.parametrize(
        'model, cfg, message', [
            (dict(num_labels=2), {}, 'the model has 2 labels, a reward model has 1'),
            (None, dict(pretrained='nowhere'), "reward_models.pretrained = 'nowhere': "),
            ({}, dict(device='cuda:99'), 'reward_models.device'),
            (dict(kind=LlamaForCausalLM), {}, "weights that its config.json requires are missing.*'score.weight'"),
        ]
    )
    def test_a_model_that_cannot_be_loaded(self, tmp_path, model, cfg, message):
        folder = save_model(tmp_path, **model)[0] if model is not None else ''
        with pytest.raises(ConfigError, match=message):
            RewardModel(dict(dict(pretrained=folder), **cfg)).scores(*ROWS)


class TestRewardedTask:

    @pytest.mark.parametrize(
        'weight, own, reward',
        [(0.25, {}, lambda score: 2 + 0.25 * score), (1.0, dict(answer=0, format=0., solved=0.), lambda score: score)]
    )
    def test_has_the_parts_of_both_and_the_weights_of_the_config(self, folder, weight, own, reward):
        model = dict(pretrained=folder, weight=weight)
        env = TokenEnv(max_new_tokens=10, reward_models=[model], reward_weights=own)
        assert env.weights == env.token_spec.reward_weights == dict(TASK.weights, **own, reward_model=weight)
        (_, found, _, _, info), = play(env, env.encode_answer(COMPLETIONS[0]))
        score, = scores(folder, ROWS[0][:1], COMPLETIONS[:1])
        assert info['reward_parts'] == dict(answer=1., format=1., solved=1., reward_model=pytest.approx(score))
        assert found == pytest.approx(reward(score)) and info['return'] == 1

    def test_two_models_have_two_names(self, folder):
        two = [dict(pretrained=folder), dict(pretrained=folder, name='other', weight=-1.)]
        assert set(TokenEnv(TASK, reward_models=two).weights) == {*TASK.weights, 'reward_model', 'other'}

    def test_a_failure_of_the_task_stays_a_failure(self, folder):
        task = Prompts('1', scorer=lambda problem, completion: 1 / 0, words=TASK.words)
        entries = TokenEnv(task, reward_models=[dict(pretrained=folder)]).scoring.scores(*(part[:2] for part in ROWS))
        assert len(entries) == 2 and all('ZeroDivisionError' in str(entry) for entry in entries)
