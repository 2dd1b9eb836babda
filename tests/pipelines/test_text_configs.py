"""The configs with real text, made small: another model folder, fewer and shorter completions, the rest as shipped."""
import os
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ding_common import ConfigError
from tests.cases import long
from tests.runs import evaluations, metrics, train
from tests.shipped import load, small, write_model_and_data

pytest.importorskip('reasoning_gym')
pytestmark = pytest.mark.envtest


@pytest.fixture(autouse=True)
def folder(own_folder, tiny_config):
    """A model folder with a tokenizer of characters and a chat template; beside it a small file like GSM8K's."""
    write_model_and_data(tiny_config)


@pytest.mark.parametrize(
    'name', [
        'reasoning_mixture', 'gsm8k_lora', 'calculator', 'rearrange',
        *(long(n) for n in ('spell_backward', 'chain_sum', 'gsm8k'))
    ],
    ids=str
)
def test_runs_on_a_folder(name):
    if 'lora' in name:
        pytest.importorskip('peft')
    main, create = small(f'{name}_grpo', env=dict(n_evaluator_episode=8))
    train((main, create), 1, lr_scheduler=dict(type='constant'))
    evaluation, parts = evaluations()[0], set(metrics()[0])
    if name.startswith('gsm8k'):
        assert evaluation['completions'][0]['prompt'] == 'What is 100 + 1?' and len(evaluation['completions']) == 8
    other = dict(calculator='calls', rearrange='right').get(name, 'overlong' if name.startswith('gsm8k') else 'score')
    assert {f'reward_{other}_mean', 'reward_right_mean'} <= parts
    assert ('kinds' in evaluation) == (name == 'reasoning_mixture')
    assert os.path.getsize('run/log/collector/completions.jsonl') > 0
    for which in ('best', 'last'):
        AutoModelForCausalLM.from_pretrained(f'run/model/{which}')
        assert AutoTokenizer.from_pretrained(f'run/model/{which}').decode([33]) == 'A'


def test_without_the_hub_one_sentence():
    main, create = load('gsm8k_grpo', policy=dict(cuda=False))
    with pytest.raises(ConfigError) as caught:
        train((main, create), 1)
    assert re.fullmatch(
        r"env.tokenizer.pretrained = 'Qwen/Qwen2.5-0.5B-Instruct': not a folder, not in the cache, and not "
        r"available from the hub \([^\n]*\)", caught.value.message
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is one')
def test_no_gpu():
    main, create = load('gsm8k_grpo')
    main.env.tokenizer.pretrained = main.policy.model.pretrained = 'base'
    with pytest.raises(ConfigError, match='policy.cuda = True: torch finds no GPU'):
        train((main, create), 1)
