"""
What somebody else hands over in good faith, as published models and other programs write it: it is accepted.
`test_handed_over.py` has what is refused.
"""
import json
import os
import shutil
import zipfile
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ding_common import ConfigError
from ding_common.hub import language_model
from ding_common.hub.language_model import build_causal_lm
from ding_common.hub.model_folder import check_model_folder
from ding_grpo.model import CausalLM
from dizoo_llm.text.tokenizer import build_word_tokenizer, load_tokenizer
from tests.conftest import TINY
from tests.gguf_file import write_gguf

IDS = torch.tensor([[1, 2, 3, 4]])


@pytest.fixture(scope='module')
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp('models') / 'good'
    torch.manual_seed(0)
    CausalLM(config=dict(TINY)).save_pretrained(str(folder), build_word_tokenizer(['a', 'b']))
    return folder


@pytest.fixture
def folder(good, tmp_path):
    shutil.copytree(good, tmp_path / 'model')
    return tmp_path / 'model'


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def load(folder, dtype=None):
    return build_causal_lm(str(folder), None, dtype, None, 'policy.model')


def logits(lm):
    with torch.no_grad():
        return lm.eval()(IDS).logits


# ------------------------------------------------------------------------------------------------------------ adapters

UNSLOTH = (
    r'(?:.*?(?:language|text).*?(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense).*?'
    r'(?:k_proj|v_proj|q_proj|o_proj|gate_proj|up_proj|down_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\.'
    r'(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense)\.'
    r'(?:(?:k_proj|v_proj|q_proj|o_proj|gate_proj|up_proj|down_proj)))'
)
SWIFT = r'^(model(?=\.)(?!.*(lm_head|embed)).*\.(k_proj|q_proj|down_proj|up_proj))$'
LORA = dict(
    regex=dict(target_modules=r'.*\.(q|k)_proj'),
    unsloth=dict(target_modules=UNSLOTH),
    swift=dict(target_modules=SWIFT),
    layers=dict(target_modules=r'model\.layers\.[0-9]+\.(?:self_attn|mlp)\.(?:q_proj|up_proj)'),
    choice=dict(target_modules=r'.*layers\.(?:0|1)\.(?:self_attn\.(?:q_proj|v_proj)|mlp\.down_proj)'),
    excluded=dict(target_modules='all-linear', exclude_modules=r'.*\.(?:k|v)_proj'),
    ranks=dict(target_modules=['q_proj'], rank_pattern={
        r'layers\.(0|1)\.self_attn\.q_proj': 4,
        'k_proj': 1
    }),
    alphas=dict(target_modules=['q_proj'], alpha_pattern={
        r'^model\.layers\.1\..*q_proj': 0.5,
        'k_proj': 64
    }),
    whole=dict(
        target_modules=['q_proj'], modules_to_save=['lm_head'], layers_to_transform=[0], layers_pattern='layers'
    ),
    tokens=dict(target_modules=['q_proj'], trainable_token_indices=[1, 2]),
    rslora=dict(target_modules=['q_proj'], use_rslora=True, use_dora=True, lora_alpha=16),
    **{
        str(how): dict(target_modules=['q_proj'], init_lora_weights=how)
        for how in (False, 'eva', 'gaussian', 'lora_ga', 'olora', 'orthogonal', 'pissa', 'pissa_niter_16')
    },
)


def save_adapters(good, tmp_path, config):
    """Adapters that do something, as ``peft`` saves them."""
    peft = pytest.importorskip('peft')
    torch.manual_seed(0)
    adapted = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(good), config)
    with torch.no_grad():
        for name, p in adapted.named_parameters():
            if p.requires_grad and 'lora' in name:
                p.add_(0.1 * torch.randn_like(p))
    adapted.save_pretrained(tmp_path / 'adapters')
    return adapted


@pytest.mark.envtest
@pytest.mark.filterwarnings('ignore')
class TestAdapters:

    @pytest.mark.parametrize('name', LORA)
    def test_that_peft_saves(self, good, tmp_path, name):
        peft = pytest.importorskip('peft')
        adapted = save_adapters(good, tmp_path, peft.LoraConfig(task_type='CAUSAL_LM', r=2, **LORA[name]))
        for dtype in (None, 'float32'):
            assert torch.allclose(
                logits(load(tmp_path / 'adapters', dtype)), logits(adapted), atol=1e-3
            )  # one of them is random

    @pytest.mark.parametrize('name', [name for name in LORA if 'init_lora_weights' not in LORA[name]])
    def test_that_a_run_saves(self, good, tmp_path, name):
        pytest.importorskip('peft')
        model = CausalLM(pretrained=str(good), lora=dict(r=2, **LORA[name]))
        with torch.no_grad():
            for p in model.parameters():
                if p.requires_grad:
                    p.add_(0.1)
        model.save_pretrained(str(tmp_path / 'adapters'))
        assert torch.allclose(logits(load(tmp_path / 'adapters')), logits(model.lm), atol=1e-5)

    def test_of_another_kind(self, good, tmp_path):
        """AdaLoRA keeps lists of bools as ranks, VB-LoRA the places of its vectors as integers."""
        peft = pytest.importorskip('peft')
        save_adapters(good, tmp_path, peft.AdaLoraConfig(init_r=4, total_step=9, target_modules=['q_proj']))
        kept = {f'model.layers.{i}.self_attn.q_proj.lora_E': [True] * 4 for i in (0, 1)}
        change(tmp_path / 'adapters' / 'adapter_config.json', rank_pattern=kept)
        load(tmp_path / 'adapters', 'float32')
        vectors = dict(num_vectors=16, vector_length=4, topk=2, save_only_topk_weights=True)
        save_adapters(good, tmp_path, peft.VBLoRAConfig(r=2, target_modules=['q_proj'], **vectors))
        assert any('indices' in name for name in load_file(tmp_path / 'adapters' / 'adapter_model.safetensors'))
        load(tmp_path / 'adapters', 'float32')

    def test_with_the_keys_of_other_programs(self, good, tmp_path):
        peft = pytest.importorskip('peft')
        save_adapters(good, tmp_path, peft.LoraConfig(task_type='CAUSAL_LM', r=2, target_modules=['q_proj']))
        library = 'transformers.models.llama.modeling_llama'
        change(
            tmp_path / 'adapters' / 'adapter_config.json',
            auto_mapping=dict(base_model_class='LlamaForCausalLM', parent_library=library, unsloth_fixed=True),
            peft_version='0.18.1',
            qalora_group_size=16,
            lora_dtype=None,
            lorap_lr_ratio=None,
            lora_ga_config=dict(direction='ArB2r', scale='stable', stable_gamma=16),
            eva_config=dict(rho=2.0, tau=0.99, use_label_mask=True, label_mask_value=-100, whiten=False)
        )
        load(tmp_path / 'adapters', 'float32')


# -------------------------------------------------------------------------------------------------------------- models


def torch_files(legacy, parts):
    """The weights in files of torch, in the format before torch 1.6 or after it, in a file or in several."""

    def make(folder):
        weights = load_file(folder / 'model.safetensors')
        (folder / 'model.safetensors').unlink()
        names = sorted(weights)
        files = {f'part-{i}.bin': names[i::2] for i in range(2)} if parts else {'pytorch_model.bin': names}
        for file, some in files.items():
            torch.save({n: weights[n] for n in some}, folder / file, _use_new_zipfile_serialization=not legacy)
        if parts:
            index = dict(metadata=dict(total_size=10 ** 12), weight_map={n: f for f in files for n in files[f]})
            (folder / 'pytorch_model.bin.index.json').write_text(json.dumps(index))

    return make


def sharded(folder):
    """As models of more than a gigabyte are: their index has a sum of bytes."""
    weights = load_file(folder / 'model.safetensors')
    (folder / 'model.safetensors').rename(folder / 'model-00001-of-00001.safetensors')
    index = dict(
        metadata=dict(total_size=16_060_522_496), weight_map={n: 'model-00001-of-00001.safetensors'
                                                              for n in weights}
    )
    (folder / 'model.safetensors.index.json').write_text(json.dumps(index))


def named(folder):
    (folder / 'model.safetensors').rename(folder / 'mine.safetensors')
    change(folder / 'config.json', transformers_weights='mine.safetensors')


def extra_files(folder):
    """Files that nobody loads."""
    (folder / '._model.safetensors').write_bytes(b'\0\5\x16\7' * 50)  # of a copy from macOS
    (folder /
     'consolidated.safetensors').write_text('version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\n')
    weights = load_file(folder / 'model.safetensors')
    save_file({name: weight.to(torch.int8) for name, weight in weights.items()}, folder / 'model.int8.safetensors')
    with zipfile.ZipFile(folder / 'optimizer.bin', 'w', zipfile.ZIP_DEFLATED) as archive:
        archive.writestr('state', bytes(10_000))
    (folder / 'scheduler.bin').write_text('x')


def positions(folder):
    """A buffer of integers, which older releases saved."""
    weights = load_file(folder / 'model.safetensors')
    save_file({**weights, 'model.position_ids': torch.arange(9)}, folder / 'model.safetensors', dict(format='pt'))


FOLDERS = [
    torch_files(False, False),
    torch_files(True, False),
    torch_files(False, True),
    torch_files(True, True),
    sharded,
    named,
    extra_files,
    positions,
    lambda folder: change(folder / 'config.json', max_position_embeddings=10_485_760),
    lambda folder: change(folder / 'config.json', num_labels=3, tokens_seen=15 * 10 ** 12, transformers_weights=None),
    lambda folder: change(folder / 'tokenizer_config.json', model_max_length=10 ** 30),
]


@pytest.mark.envtest
@pytest.mark.filterwarnings('ignore')
class TestModels:

    @pytest.mark.parametrize('make', FOLDERS)
    def test_in_a_folder(self, good, folder, make, monkeypatch):
        monkeypatch.setattr(language_model, 'FEW_WEIGHTS', 0)
        make(folder)
        assert torch.equal(logits(load(folder)), logits(load(good)))
        assert load_tokenizer(str(folder)).eos_token == '<eos>'

    def test_of_few_weights_with_large_masks(self, tmp_path):
        """The smallest TinyStories models have nine times as many bytes of masks as of weights."""
        sizes = dict(hidden_size=64, num_heads=16, num_layers=8, attention_types=[[['global', 'local'], 4]])
        model = CausalLM(config=dict(model_type='gpt_neo', vocab_size=64, max_position_embeddings=2048, **sizes))
        model.save_pretrained(str(tmp_path / 'model'))
        load(tmp_path / 'model')

    @pytest.mark.parametrize('kind', ['quantized', 'plain', 'gguf'])
    def test_of_four_weights_in_a_byte(self, folder, monkeypatch, kind):
        """As in files of two bits for each weight, which a config says."""
        pytest.importorskip('gguf')
        lm = write_gguf(str(folder)) if kind == 'gguf' else load(folder)
        if kind == 'quantized':
            change(folder / 'config.json', quantization_config=dict(quant_method='gptq', bits=2, group_size=128))
        monkeypatch.setattr(language_model, 'FEW_WEIGHTS', 0)
        monkeypatch.setattr(os.path, 'getsize', lambda path: sum(p.numel() for p in lm.parameters()) // 4)
        with nullcontext() if kind != 'plain' else pytest.raises(ConfigError,
                                                                 match='here: its config describes a model'):
            language_model._check_size(
                str(folder), 'tiny.gguf' if kind == 'gguf' else None, 'here', AutoModelForCausalLM
            )

    def test_of_two_bits(self, folder):
        """A BitNet, which packs four weights into an integer."""
        pytest.importorskip('accelerate')
        weights = load_file(folder / 'model.safetensors')
        for name, weight in list(weights.items()):
            if name.endswith('_proj.weight'):
                weights.update({name: weight[::4].to(torch.uint8).contiguous(), f'{name}_scale': torch.ones(1)})
        save_file(weights, folder / 'model.safetensors', dict(format='pt'))
        kind = dict(quant_method='bitnet', linear_class='bitlinear', quantization_mode='offline')
        change(folder / 'config.json', quantization_config=kind)
        assert load(folder).get_parameter('lm_head.weight').dtype == torch.float32

    def test_of_a_gguf_file(self, folder, monkeypatch):
        """Beside it is a file of weights that nobody has downloaded."""
        pytest.importorskip('gguf')
        monkeypatch.setattr(language_model, 'FEW_WEIGHTS', 0)
        write_gguf(str(folder))
        (folder / 'model.safetensors').write_text('version https://git-lfs.github.com/spec/v1\n')
        build_causal_lm(str(folder), None, None, None, 'policy.model', 'tiny.gguf')

    def test_that_is_made_here(self):
        sizes = dict(hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1)
        build_causal_lm(None, dict(model_type='llama', vocab_size=262_144, **sizes), 'float32', None, 'policy.model')
        for key, value, most in (('num_hidden_layers', 100_001, 100_000), ('vocab_size', 10 ** 10, 10 ** 9)):
            with pytest.raises(ConfigError, match=f'policy.model.config.{key} = {value}: must be at most {most}'):
                build_causal_lm(None, dict(dict(TINY), **{key: value}), 'float32', None, 'policy.model')

    def test_of_every_default_config_of_transformers(self, tmp_path):
        checked = 0
        for name in CONFIG_MAPPING.keys():
            try:
                config = CONFIG_MAPPING[name]()
            except Exception:  # needs arguments
                continue
            config.to_json_file(tmp_path / 'config.json', use_diff=False)
            check_model_folder(str(tmp_path), name)
            checked += 1
        assert checked > 0.9 * len(CONFIG_MAPPING)

    @pytest.mark.parametrize(
        'config', [
            dict(model_type='doge', num_experts=16384, num_hidden_layers=1, hidden_size=8, num_attention_heads=1),
            dict(model_type='gemma3n_text', vocab_size_per_layer_input=262144),
            dict(model_type='qwen2_moe', shared_expert_intermediate_size=20480),
            dict(model_type='muse_spark_text', layer_rope_theta=[500000.0] * 2),
        ]
    )
    def test_of_a_config_with_values_as_published(self, tmp_path, config):
        (tmp_path / 'config.json').write_text(json.dumps(config))
        check_model_folder(str(tmp_path), 'key')
