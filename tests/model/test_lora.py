import copy
import os
import warnings

import pytest
import torch
from transformers import AutoModelForCausalLM

from ding_common import ConfigError
from ding_grpo.model import CausalLM
from tests.model.helper import make

pytest.importorskip('peft')


@pytest.fixture
def folder(tiny_model, tmp_path):
    tiny_model.save_pretrained(str(tmp_path / 'base'))
    return str(tmp_path / 'base')


@pytest.fixture
def model(folder):
    return trained(folder)


def trained(folder, **options):
    """A model whose adapters do something; at the beginning, half of their weights are 0."""
    model = CausalLM(pretrained=folder, lora=dict(r=4, lora_alpha=8), **options)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if 'lora_B' in name:
                p.normal_()
    return model


def logits(lm):
    with torch.no_grad():
        return lm(torch.tensor([[1, 2, 3, 4]])).logits


def test_nobody_is_warned(folder):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        CausalLM(pretrained=folder, lora=dict(r=4))


def test_adapters_alone_are_trained_and_kept(model, tiny_model):
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert names and all('lora_' in name for name in names) and set(model.state_dict()) == set(names)
    kept, whole = (sum(p.numel() for p in each) for each in (model.state_dict().values(), tiny_model.parameters()))
    assert kept < 0.2 * whole
    assert not any(module.training for module in model.modules())


def test_the_reference_is_the_model_without_them(model, tiny_model):
    with_them, base = logits(model.lm), logits(tiny_model.lm)
    with model.without_adapters():
        assert torch.equal(logits(model.lm), base)
    assert torch.equal(logits(model.lm), with_them) and not torch.allclose(with_them, base, atol=1e-2)


def test_on_the_weights_of_experts(tmp_path):
    """peft parametrizes them in each call, which failed in the float64 of the output layer's measurement."""
    make('qwen3_moe').save_pretrained(str(tmp_path))
    model = CausalLM(pretrained=str(tmp_path), lora=dict(r=4, lora_alpha=8, target_modules='all-linear'))
    assert any('experts' in name for name, p in model.named_parameters() if p.requires_grad)
    assert model.output_head()[2:4] == (1, None) and model.shares_prompts


def test_a_copy_is_its_own(model):
    before, other = logits(model.lm), copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    with other.without_adapters():
        assert torch.equal(logits(model.lm), before)


def test_checkpoint(model, folder):
    other = CausalLM(pretrained=folder, lora=dict(r=4, lora_alpha=8))
    other.load_state_dict(model.state_dict())
    assert torch.equal(logits(other.lm), logits(model.lm))
    with pytest.raises(RuntimeError, match='not one of these adapters'):
        other.load_state_dict(dict(list(model.state_dict().items())[1:]))


@pytest.mark.parametrize('merged', [False, True])
@pytest.mark.parametrize('other_weights', [False, True])
def test_saved_folder(folder, tmp_path, merged, other_weights):
    model = trained(folder, save_merged=merged)
    path, now = str(tmp_path / 'out'), logits(model.lm)
    state = {name: 2 * value for name, value in model.state_dict().items()} if other_weights else None
    model.save_pretrained(path, state_dict=state)
    assert torch.equal(logits(model.lm), now)
    assert os.path.exists(os.path.join(path, 'adapter_config.json')) != merged
    if not merged:
        card = open(os.path.join(path, 'README.md')).read()
        assert 'Rank 4 on q_proj, v_proj' in card and 'More Information' not in card
    if other_weights:
        model.load_state_dict(state)
    plain = AutoModelForCausalLM.from_pretrained(path)
    assert torch.allclose(logits(plain), logits(model.lm), atol=1e-5)


@pytest.mark.parametrize(
    'lora, message', [
        (dict(rank=4), 'lora.rank = 4: unknown key; .*Allowed: .*, r, .*target_modules'),
        (dict(target_modules=['nothing']), 'lora.*nothing'),
        (dict(r=0), 'lora'),
        ('/', "lora = '/': must be a folder with an adapter_config.json, or a dict"),
        (dict(lora_dropout=0.1), 'lora.lora_dropout = 0.1: must be 0; .* one distribution'),
        (dict(bias='all'), "lora.bias = 'all': must be 'none'; .* the reference"),
        (dict(init_lora_weights='pissa'), "lora.init_lora_weights = 'pissa': must be True or False or"),
        (dict(layer_replication=[[0, 2]]), r'lora.layer_replication = \[\[0, 2\]\]: must be'),
        (dict(target_modules='(.*)*q_proj'), 'lora.target_modules = .*: must be names of'),
        (dict(inference_mode=True), 'lora.inference_mode = True: must be False'),
        (None, 'save_merged = True: needs policy.model.lora'),
    ],
    ids=str
)
def test_wrong_options(folder, lora, message):
    with pytest.raises(ConfigError, match=f'policy.model.{message}'):
        CausalLM(pretrained=folder, lora=lora, save_merged=True)


def test_wrong_use(folder, tiny_config):
    with pytest.raises(ConfigError, match="gradient_checkpointing = 'yes': must be True or False"):
        CausalLM(pretrained=folder, gradient_checkpointing='yes')
    with pytest.raises(ConfigError, match='needs policy.model.pretrained'):
        CausalLM(config=tiny_config, lora=dict(r=4))
