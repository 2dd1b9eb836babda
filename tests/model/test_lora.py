import copy
import os
import warnings

import pytest
import torch
from transformers import AutoModelForCausalLM

from ding_common import ConfigError
from ding_grpo.model import CausalLM

pytest.importorskip('peft')
IDS = torch.tensor([[1, 2, 3, 4]])


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
        return lm(IDS).logits


@pytest.mark.unittest
class TestLoRA:

    def test_nobody_is_warned(self, folder):
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            CausalLM(pretrained=folder, lora=dict(r=4))

    def test_adapters_alone_are_trained_and_kept(self, model, tiny_model):
        trained = [name for name, p in model.named_parameters() if p.requires_grad]
        assert trained and all('lora_' in name for name in trained) and set(model.state_dict()) == set(trained)
        assert sum(p.numel()
                   for p in model.state_dict().values()) < 0.2 * sum(p.numel() for p in tiny_model.parameters())

    def test_the_reference_is_the_model_without_them(self, model, tiny_model):
        with_them = logits(model.lm)
        with model.without_adapters():
            assert torch.equal(logits(model.lm), logits(tiny_model.lm))
        assert torch.equal(logits(model.lm), with_them) and not torch.allclose(
            with_them, logits(tiny_model.lm), atol=1e-2
        )

    def test_on_the_weights_of_experts(self, tmp_path):
        """peft parametrizes them in each call, which failed in the float64 of the output layer's measurement."""
        sizes = dict(hidden_size=32, moe_intermediate_size=16, intermediate_size=48, num_hidden_layers=2)
        heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2)
        base = CausalLM(config=dict(model_type='qwen3_moe', vocab_size=32, **sizes, **heads))
        base.save_pretrained(str(tmp_path / 'moe'))
        model = CausalLM(pretrained=str(tmp_path / 'moe'), lora=dict(r=4, lora_alpha=8, target_modules='all-linear'))
        assert any('experts' in name for name, p in model.named_parameters() if p.requires_grad)
        assert model.output_head()[2:4] == (1, None) and model.shares_prompts

    def test_no_part_of_it_is_in_training_mode(self, model):
        assert not any(module.training for module in model.modules())

    def test_a_copy_is_its_own(self, model):
        before, other = logits(model.lm), copy.deepcopy(model)
        with torch.no_grad():
            for p in other.parameters():
                p.zero_()
        with other.without_adapters():
            assert torch.equal(logits(model.lm), before)

    def test_checkpoint(self, model, folder):
        other = CausalLM(pretrained=folder, lora=dict(r=4, lora_alpha=8))
        other.load_state_dict(model.state_dict())
        assert torch.equal(logits(other.lm), logits(model.lm))
        with pytest.raises(RuntimeError, match='not one of these adapters'):
            other.load_state_dict(dict(list(model.state_dict().items())[1:]))

    @pytest.mark.parametrize('merged', [False, True])
    @pytest.mark.parametrize('other_weights', [False, True])
    def test_saved_folder(self, folder, tmp_path, merged, other_weights):
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
        'options, message', [
            (dict(lora=dict(rank=4)), 'policy.model.lora.rank = 4: unknown key; .*Allowed: .*, r, .*target_modules'),
            (dict(lora=dict(target_modules=['nothing'])), 'policy.model.lora.*nothing'),
            (dict(lora=dict(r=0)), 'policy.model.lora'),
            (dict(lora='x'), "policy.model.lora = 'x': must be a dict"),
            (
                dict(lora=dict(lora_dropout=0.1)
                     ), r'policy.model.lora.lora_dropout = 0.1: must be 0; .* one distribution'
            ),
            (dict(lora=dict(bias='all')), "policy.model.lora.bias = 'all': must be 'none'; .* the reference"),
            (dict(lora=dict(init_lora_weights='pissa')), "init_lora_weights = 'pissa': must be True or False or"),
            (
                dict(lora=dict(layer_replication=[[0, 2]])
                     ), r'policy.model.lora.layer_replication = \[\[0, 2\]\]: must be'
            ),
            (dict(lora=dict(target_modules='(.*)*q_proj')), 'policy.model.lora.target_modules = .*: must be names of'),
            (dict(lora=dict(inference_mode=True)), 'policy.model.lora.inference_mode = True: must be False'),
            (dict(save_merged=True), 'policy.model.save_merged = True: needs policy.model.lora'),
            (dict(gradient_checkpointing='yes'), "gradient_checkpointing = 'yes': must be True or False"),
        ],
        ids=str
    )
    def test_wrong_config(self, folder, options, message):
        with pytest.raises(ConfigError, match=message):
            CausalLM(pretrained=folder, **options)

    def test_random_weights_have_none(self, tiny_config):
        with pytest.raises(ConfigError, match='needs policy.model.pretrained'):
            CausalLM(config=tiny_config, lora=dict(r=4))
