"""Prompts are measured before a run: those that are too long are refused or dropped."""
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from ding_common import ConfigError
from dizoo_llm.envs import DingTokenEnv, TokenEnv, fitting
from dizoo_llm.envs.options import ENV_OPTIONS
from dizoo_llm.tasks import Problem
from dizoo_llm.text import encoder as encoding
from dizoo_llm.text.chat import encode_prompt, encode_prompts
from dizoo_llm.text.encoder import Encoder
from dizoo_llm.text.tokenizer import build_char_tokenizer, build_word_tokenizer
from tests.dizoo_llm.helper import Prompts, environments, pretrained, questions, section, write

MANY = fitting.MOST_READ + 1  # prompts, of which only those that may be long are encoded


@pytest.mark.envtest
class TestLongPrompts:

    @pytest.mark.parametrize('number', [fitting.TOGETHER + 1, MANY])
    def test_are_found_before_the_run(self, tmp_path, number):
        cfg = section(write(tmp_path / 'a.jsonl', questions(number, long=(7, fitting.TOGETHER))), max_prompt_length=10)
        told = f'10: 2 of {number:,} prompts for training have more than 10 tokens, .* has 85'
        with pytest.raises(ConfigError, match=told):
            DingTokenEnv.create_collector_env_cfg(cfg)
        with pytest.raises(ConfigError, match=f"2 of {number:,} prompts for evaluation .*env.overlong_prompts='drop'"):
            DingTokenEnv.create_evaluator_env_cfg(cfg)

    def test_are_dropped_and_no_other_problem_changes_sides(self, tmp_path, capsys):
        path = write(tmp_path / 'a.jsonl', questions(40, long=range(0, 40, 4)))
        cfg = section(path, task=dict(eval_size=20))
        whole = [TokenEnv(cfg.task, tokenizer=cfg.tokenizer, evaluation=evaluation) for evaluation in (False, True)]
        cfg.update(max_prompt_length=10, overlong_prompts='drop')
        parts = environments(cfg)
        said = [line for line in capsys.readouterr().out.splitlines() if ': columns: ' not in line]
        assert len(said) == 2 and all("env.overlong_prompts = 'drop': " in line for line in said)
        for before, envs in zip(whole, parts):
            texts = [before.problems.checked_problem(i).text for i in range(len(before.problems))]
            expected = [text for text in texts if 'how' not in text]
            assert all(env.num_problems == len(expected) for env in envs) and len(expected) < 20
            for i, text in enumerate(expected):
                for env in envs:
                    assert env.reset(index=i).shape == (10 + 16, )
                    info = env.step([0] * 16).info
                    assert (info['index'], info['prompt']) == (i, text)

    def test_not_all_of_them_can_be_dropped(self, tmp_path):
        cfg = section(write(tmp_path / 'a.jsonl', questions(30)), max_prompt_length=1, overlong_prompts='drop')
        with pytest.raises(ConfigError, match='30 of 30 prompts for training'):
            DingTokenEnv.create_collector_env_cfg(cfg)

    def test_of_a_task_that_generates_are_measured_on_demand(self):
        task, options = Prompts('a' * 3, 'a' * 9, 'a' * 2), dict(tokenizer=dict(chars='a'), max_prompt_length=4)
        assert TokenEnv(task, **options).kept == range(3) and task.asked == 0
        env = TokenEnv(task, overlong_prompts='drop', **options)
        assert [env.problems.checked_problem(i).answer for i in range(len(env.problems))] == ['0', '2']

    def test_dropped_problems_are_not_demonstrated(self):
        task = Prompts('a', 'a' * 9, 'aa', listed=True)
        cfg = dict(tokenizer=dict(chars='a0123456789'), max_prompt_length=4, overlong_prompts='drop')
        shown = TokenEnv(task, **cfg).token_spec.demonstrations
        assert [len(shown[i]['input_ids']) for i in range(len(shown))] == [3, 4]

    @pytest.mark.parametrize('number', [2, MANY])
    def test_a_chat_is_measured_with_its_template(self, tmp_path, number):
        tokenizer = build_char_tokenizer('a<u>')
        tokenizer.chat_template = "{% for m in messages %}<u>{{ m['content'] }}<u>{% endfor %}"
        options = dict(tokenizer=pretrained(tokenizer, tmp_path))
        sizes = [5] + [3] * (number - 1)
        task = Prompts(*([dict(role='user', content='a' * size)] for size in sizes), listed=True)
        assert TokenEnv(task, max_prompt_length=11, **options).kept == range(number)
        assert TokenEnv(task, **options).max_prompt_length == 11
        with pytest.raises(ConfigError, match=f'1 of {number:,} prompts for training .* has 11'):
            TokenEnv(task, max_prompt_length=10, **options)

    @pytest.mark.parametrize('template', [None, "{% for m in messages %}b{{ m['content'] }}{% endfor %}"])
    @pytest.mark.parametrize(
        'prompts', [['a', '', 'ab a', 'a' * 70], ['a', 'a<eos>b', 'b'], [[dict(role='user', content='a')]]]
    )
    def test_together_they_are_encoded_as_alone(self, prompts, template):

        def result(encode):
            try:
                return encode()
            except ConfigError as error:
                return error.message

        changes = dict(), dict(chat=False), dict(chat=True), dict(system_prompt='a'), dict(chat_options=dict(b=1))
        for tokenizer in (build_char_tokenizer('ab <eos>'), build_word_tokenizer(['a', 'b'])):
            tokenizer.chat_template = template
            for options in changes:
                alone = result(lambda: [encode_prompt(tokenizer, prompt, **options) for prompt in prompts])
                assert result(lambda: encode_prompts(tokenizer, prompts, **options)) == alone

    def test_resets_in_threads_share_the_encoded_prompts(self, monkeypatch):
        monkeypatch.setattr(encoding, 'MOST_ENCODED', 2)
        encoder = Encoder(Prompts('a'), dict(ENV_OPTIONS, tokenizer=dict(chars='ab<eos>'), max_prompt_length=16))
        prompts = ['a', 'b', 'aa', 'a<eos>', 'bb']
        expected = [encode_prompt(encoder.tokenizer, prompt) for prompt in prompts]

        def reset(number):
            numbers = [i % 5 for i in range(number, number + 300)]
            return [encoder.prompt(Problem(prompts[i])) for i in numbers] == [expected[i] for i in numbers]

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(16) as threads:
                assert all(threads.map(reset, range(16)))
        finally:
            sys.setswitchinterval(interval)
