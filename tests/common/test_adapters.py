"""The folder that a run with adapters saves, wherever a folder of a model is named."""
import copy
import os
import sys

import pytest
import torch
from click.testing import CliRunner
from ding.entry import serial_pipeline_onpolicy
from easydict import EasyDict
from transformers import AutoModelForCausalLM

from ding_common import ConfigError
from ding_common.hub.adapters import check_keys
from ding_grpo.model import CausalLM
from dizoo_llm.play import main as play
from dizoo_llm.sft import train
from dizoo_llm.text.tokenizer import load_tokenizer
from tests.handed_over.helper import load
from tests.policies import make_policy
from tests.shipped import small

pytest.importorskip('peft')
IDS = torch.tensor([[1, 2, 3, 4]])


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A folder with a short run with adapters that do something, and its configs."""
    folder = tmp_path_factory.mktemp('lora')
    main, create = small('think_answer_grpo')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        torch.manual_seed(0)
        CausalLM(config=dict(main.policy.model.config)).save_pretrained('base')
        main.policy.model = EasyDict(pretrained='base', lora=dict(r=4, lora_alpha=64))
        main.policy.learn.learning_rate = 0.05
        serial_pipeline_onpolicy((main, create), max_train_iter=2)
    return folder, main, create


@pytest.fixture
def lora_run(trained, monkeypatch):
    """The configs of the run, in whose folder the test is."""
    folder, *configs = trained
    monkeypatch.chdir(folder)
    return copy.deepcopy(configs)


def logits(lm):
    with torch.no_grad():
        return lm(IDS).logits


class TestRun:

    def test_play_answers_as_plain_transformers(self, lora_run):
        plain, tokenizer = AutoModelForCausalLM.from_pretrained('run/model/last'), load_tokenizer('run/model/last')
        ids = tokenizer('17 5 <think>', return_tensors='pt').input_ids
        most = lora_run[0].env.max_new_tokens
        out = plain.generate(ids, max_new_tokens=most, eos_token_id=tokenizer.eos_token_id)[0, ids.shape[1]:]
        base = AutoModelForCausalLM.from_pretrained('base').generate(ids, max_new_tokens=most)[0, ids.shape[1]:]
        assert not torch.equal(out, base)  # else adapters that are not there would agree
        shown = CliRunner().invoke(play, ['run/model/last', '17 5 <think>', '--max-new-tokens', str(most)])
        assert shown.exit_code == 0, shown.output
        assert shown.stdout.split() == tokenizer.decode(out, skip_special_tokens=True).split()
        table = CliRunner().invoke(play, ['run/model/last', '--task', 'think_answer']).stdout
        assert len(table.splitlines()) == 7

    def test_a_policy_begins_with_them_merged(self, lora_run):
        main, create = lora_run
        main.policy.model = EasyDict(pretrained='run/model/last')
        policy = make_policy(main, create)
        plain = AutoModelForCausalLM.from_pretrained('run/model/last')
        assert (logits(policy.whole_model.lm) - logits(plain)).abs().max() < 1e-5
        assert all(p.requires_grad for p in policy.whole_model.parameters())
        main.exp_name = 'whole'
        serial_pipeline_onpolicy((main, create), max_train_iter=1)
        whole = AutoModelForCausalLM.from_pretrained('whole/model/last')
        assert not os.path.exists('whole/model/last/adapter_config.json')
        assert not torch.allclose(logits(whole), logits(plain), atol=1e-3)  # what was trained is saved

    def test_new_adapters_on_them_are_saved_merged_or_not_at_all(self, lora_run):
        main, create = lora_run
        main.policy.model.pretrained = 'run/model/last'
        with pytest.raises(ConfigError,
                           match="pretrained = 'run/model/last': the folder contains adapters.*save_merged=True"):
            make_policy(main, create)
        main.policy.model.save_merged = True
        policy = make_policy(main, create)
        policy.whole_model.save_pretrained('merged')
        assert torch.allclose(
            logits(AutoModelForCausalLM.from_pretrained('merged')), logits(policy.whole_model.lm), atol=1e-5
        )

    def test_a_warm_start_trains_all_of_it(self, lora_run):
        pytest.importorskip('accelerate')
        cfg = dict(
            exp_name='warm',
            env=dict(task=dict(type='think_answer'), tokenizer=dict(pretrained='run/model/last'), max_new_tokens=10),
            model=dict(pretrained='run/model/last'),
            train=dict(examples=4, batch_size=4, max_steps=1, eval_freq=1),
        )
        folder, _ = train(cfg, seed=0)
        assert os.path.exists(f'{folder}/config.json') and not os.path.exists(f'{folder}/adapter_config.json')

    def test_without_the_extra_it_ends_in_one_line(self, lora_run, monkeypatch):
        monkeypatch.setitem(sys.modules, 'peft', None)
        shown = CliRunner().invoke(play, ['run/model/last', 'x'])
        assert shown.output == "Error: FOLDER.pretrained = 'run/model/last': contains adapters, which need the " \
            "extra: pip install '.[lora]' in the clone\n"


@pytest.fixture
def adapters(tmp_path, tiny_model):
    base, folder = str(tmp_path / 'base'), str(tmp_path / 'adapters')
    tiny_model.save_pretrained(base)
    CausalLM(pretrained=base, lora=dict(r=2, target_modules=['q_proj'])).save_pretrained(folder)
    return tmp_path / 'adapters'


def test_fresh_adapters_do_nothing_and_are_merged_in_float32_alone(adapters):
    with pytest.raises(ConfigError, match="policy.model.dtype must be 'float32', since another type would round"):
        load(adapters, 'bfloat16')
    assert torch.equal(logits(load(adapters, 'float32')), logits(load(adapters.parent / 'base', 'float32')))


class TestPatterns:
    """Python's matching takes exponential time for some; only they are refused."""

    @pytest.mark.parametrize(
        'pattern', [
            'q_proj', r'.*\.(q|k)_proj', r'(?:a|b)?c', '[0-9]+', r'(\.\w)*', '(ab|cd)+', r'^a$|\bb\d{1,3}', '(a{3}){9}',
            '(?!a)(?=.*b).*c', '.*.*.*.*x', '(' * 50 + 'a' + ')?' * 50, '(attention|attn|mlp|q_proj|k_proj){1,3}'
        ]
    )
    def test_allowed(self, pattern):
        check_keys(dict(target_modules=pattern, modules_to_save=[pattern], rank_pattern={pattern: 2}), '')

    @pytest.mark.parametrize(
        'pattern', [
            '(.*)*x', '(a+)+b', '(a|a)*b', '(a|ab)*c', '(.|a)*b', '(.|a)' * 40, '(.?){50}', '.*.*.*.*.*x',
            '(?:(?:a?){9}){9}', r'(a)\1', '(?i:a|A)*b', '(?i)(ab|AB)*c', '(?=(.*)*x)', 'a{99999999999}', '*', 'a)(b',
            '(' * 9999 + ')' * 9999, '(a)?(?(1)b|c)', 5, None
        ]
    )
    def test_refused(self, pattern):
        for config in (dict(target_modules=[pattern]), dict(layers_pattern=['q_proj', pattern])):
            with pytest.raises(ConfigError, match='here: .* = .*: must be names of modules'):
                check_keys(config, 'here: ')

    def test_all_of_them_count(self):
        check_keys(dict(rank_pattern={f'{i}.*.*.*': 2 for i in range(500)}), '')
        with pytest.raises(ConfigError, match='rank_pattern = '):
            check_keys(dict(rank_pattern={f'{i}.*.*.*': 2 for i in range(1000)}), '')
