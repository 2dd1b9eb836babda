"""The configs with real text, made small: another model folder, fewer and shorter completions, the rest as shipped."""
import os
import re

import pytest
from ding.entry import serial_pipeline_onpolicy
from transformers import AutoModelForCausalLM, AutoTokenizer

from ding_common import ConfigError, read_json_lines

from tests.shipped import load, small, write_model_and_data

pytest.importorskip('reasoning_gym')


@pytest.fixture
def folder(tmp_path, monkeypatch, tiny_config):
    """A model folder with a tokenizer of characters and a chat template; beside it a small file like GSM8K's."""
    monkeypatch.chdir(tmp_path)
    write_model_and_data(tiny_config)
    return str(tmp_path / 'base')


@pytest.mark.envtest
class TestTextConfigs:

    @pytest.mark.parametrize(
        'name', ['spell_backward', 'chain_sum', 'reasoning_mixture', 'gsm8k', 'gsm8k_lora', 'calculator'], ids=str
    )
    def test_runs_on_a_folder(self, folder, name):
        if 'lora' in name:
            pytest.importorskip('peft')
        main, create = small(f'{name}_grpo')
        main.env.n_evaluator_episode = 8
        main.policy.learn.lr_scheduler = dict(type='constant')
        serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)
        evaluation = read_json_lines('run/log/evaluator/evaluations.jsonl')[0]
        metrics, = read_json_lines('run/log/learner/metrics.jsonl')
        prompt = evaluation['completions'][0]['prompt']
        if name.startswith('gsm8k'):
            assert prompt == 'What is 100 + 1?' and len(evaluation['completions']) == 8
            assert {'reward_right_mean', 'reward_overlong_mean'} <= set(metrics)
        else:
            other = 'calls' if name == 'calculator' else 'score'
            assert {f'reward_{other}_mean', 'reward_right_mean'} <= set(metrics)
        assert ('kinds' in evaluation) == (name == 'reasoning_mixture')
        assert os.path.getsize('run/log/collector/completions.jsonl') > 0
        for which in ('best', 'last'):
            saved = os.path.join('run', 'model', which)
            AutoModelForCausalLM.from_pretrained(saved)
            assert AutoTokenizer.from_pretrained(saved).decode([33]) == 'A'

    def test_without_the_hub_one_sentence(self, folder):
        main, create = load('gsm8k_grpo')
        main.policy.cuda = False
        with pytest.raises(ConfigError) as caught:
            serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)
        assert re.fullmatch(
            r"env.tokenizer.pretrained = 'Qwen/Qwen2.5-0.5B-Instruct': not a folder, not in the cache, and not "
            r"available from the hub \([^\n]*\)", caught.value.message
        )

    def test_no_gpu(self, folder, monkeypatch):
        monkeypatch.setattr('torch.cuda.is_available', lambda: False)
        main, create = load('gsm8k_grpo')
        main.env.tokenizer.pretrained = main.policy.model.pretrained = folder
        with pytest.raises(ConfigError, match='policy.cuda = True: torch finds no GPU'):
            serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)
