"""
What somebody else hands over in good faith, as published models and other programs write it: it is accepted. The other
files have what is refused.
"""
import json
import os
import zipfile

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
from dizoo_llm.text.tokenizer import load_tokenizer
from tests.cases import brief, long
from tests.conftest import TINY
from tests.gguf_file import write_gguf
from tests.handed_over.helper import change, load, of, weights_of, write

pytestmark = [pytest.mark.envtest, pytest.mark.filterwarnings('ignore')]
IDS = torch.tensor([[1, 2, 3, 4]])
LFS = 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\n'  # of a file that nobody has downloaded


def logits(lm):
    with torch.no_grad():
        return lm.eval()(IDS).logits


@pytest.fixture
def folder(handed):
    of('model')(handed)
    return handed


@pytest.fixture
def all_weights(monkeypatch):
    """The size of a model is checked, however small it is."""
    monkeypatch.setattr(language_model, 'FEW_WEIGHTS', 0)


# ------------------------------------------------------------------------------------------------------------ adapters

UNSLOTH = (
    r'(?:.*?(?:language|text).*?(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense).*?'
    r'(?:k_proj|v_proj|q_proj|o_proj|gate_proj|up_proj|down_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\.'
    r'(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense)\.'
    r'(?:(?:k_proj|v_proj|q_proj|o_proj|gate_proj|up_proj|down_proj)))'
)
Q = dict(target_modules=['q_proj'])
RANKS = {r'layers\.(0|1)\.self_attn\.q_proj': 4, 'k_proj': 1}
ALPHAS = {r'^model\.layers\.1\..*q_proj': 0.5, 'k_proj': 64}
INITS = (False, 'eva', 'gaussian', 'lora_ga', 'olora', 'orthogonal', 'pissa', 'pissa_niter_16')
LORA = dict(
    regex=dict(target_modules=r'.*\.(q|k)_proj'),
    unsloth=dict(target_modules=UNSLOTH),
    swift=dict(target_modules=r'^(model(?=\.)(?!.*(lm_head|embed)).*\.(k_proj|q_proj|down_proj|up_proj))$'),
    layers=dict(target_modules=r'model\.layers\.[0-9]+\.(?:self_attn|mlp)\.(?:q_proj|up_proj)'),
    choice=dict(target_modules=r'.*layers\.(?:0|1)\.(?:self_attn\.(?:q_proj|v_proj)|mlp\.down_proj)'),
    excluded=dict(target_modules='all-linear', exclude_modules=r'.*\.(?:k|v)_proj'),
    ranks=dict(Q, rank_pattern=RANKS),
    alphas=dict(Q, alpha_pattern=ALPHAS),
    whole=dict(Q, modules_to_save=['lm_head'], layers_to_transform=[0], layers_pattern='layers'),
    tokens=dict(Q, trainable_token_indices=[1, 2]),
    rslora=dict(Q, use_rslora=True, use_dora=True, lora_alpha=16),
    **{str(how): dict(Q, init_lora_weights=how) for how in INITS},
)  # yapf: disable
# One of each kind of pattern, of key and of initial weights.
FEW = ('unsloth', 'layers', 'excluded', 'ranks', 'whole', 'tokens', 'rslora', 'False', 'pissa')


def save_adapters(good, folder, kind='LoraConfig', **options):
    """Adapters that do something, as ``peft`` saves them."""
    peft = pytest.importorskip('peft')
    torch.manual_seed(0)
    config = getattr(peft, kind)(**options)
    adapted = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(good / 'model'), config)
    with torch.no_grad():
        for name, p in adapted.named_parameters():
            if p.requires_grad and 'lora' in name:
                p.add_(0.1 * torch.randn_like(p))
    adapted.save_pretrained(folder)
    return adapted


@pytest.mark.parametrize('name', brief(LORA, FEW))
def test_adapters_that_peft_saves(good, handed, name):
    adapted = save_adapters(good, handed, task_type='CAUSAL_LM', r=2, **LORA[name])
    for dtype in (None, 'float32'):
        assert torch.allclose(logits(load(handed, dtype)), logits(adapted), atol=1e-3)  # one of them is random


@pytest.mark.parametrize('name', brief([name for name in LORA if 'init_lora_weights' not in LORA[name]], FEW))
def test_adapters_that_a_run_saves(good, handed, name):
    pytest.importorskip('peft')
    model = CausalLM(pretrained=str(good / 'model'), lora=dict(r=2, **LORA[name]))
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(0.1)
    model.save_pretrained(str(handed))
    assert torch.allclose(logits(load(handed)), logits(model.lm), atol=1e-5)


def test_adapters_of_another_kind(good, handed):
    """AdaLoRA keeps lists of bools as ranks, VB-LoRA the places of its vectors as integers."""
    save_adapters(good, handed / 'ada', 'AdaLoraConfig', init_r=4, total_step=9, **Q)
    kept = {f'model.layers.{i}.self_attn.q_proj.lora_E': [True] * 4 for i in (0, 1)}
    change('adapter_config.json', rank_pattern=kept)(handed / 'ada')
    load(handed / 'ada', 'float32')
    vectors = dict(num_vectors=16, vector_length=4, topk=2, save_only_topk_weights=True)
    save_adapters(good, handed / 'vb', 'VBLoRAConfig', r=2, **Q, **vectors)
    assert any('indices' in name for name in load_file(handed / 'vb' / 'adapter_model.safetensors'))
    load(handed / 'vb', 'float32')


def test_adapters_with_the_keys_of_other_programs(good, handed):
    save_adapters(good, handed, task_type='CAUSAL_LM', r=2, **Q)
    library = 'transformers.models.llama.modeling_llama'
    change(
        'adapter_config.json',
        auto_mapping=dict(base_model_class='LlamaForCausalLM', parent_library=library, unsloth_fixed=True),
        peft_version='0.18.1',
        qalora_group_size=16,
        lora_dtype=None,
        lorap_lr_ratio=None,
        lora_ga_config=dict(direction='ArB2r', scale='stable', stable_gamma=16),
        eva_config=dict(rho=2.0, tau=0.99, use_label_mask=True, label_mask_value=-100, whiten=False)
    )(handed)
    load(handed, 'float32')


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
            write('pytorch_model.bin.index.json', json.dumps(index))(folder)

    return make


def sharded(folder):
    """As models of more than a gigabyte are: their index has a sum of bytes."""
    name = 'model-00001-of-00001.safetensors'
    (folder / 'model.safetensors').rename(folder / name)
    index = dict(metadata=dict(total_size=16_060_522_496), weight_map=dict.fromkeys(load_file(folder / name), name))
    write('model.safetensors.index.json', json.dumps(index))(folder)


def named(folder):
    (folder / 'model.safetensors').rename(folder / 'mine.safetensors')
    change('config.json', transformers_weights='mine.safetensors')(folder)


def extra_files(folder):
    """Files that nobody loads."""
    (folder / '._model.safetensors').write_bytes(b'\0\5\x16\7' * 50)  # of a copy from macOS
    write('consolidated.safetensors', LFS)(folder)
    weights = load_file(folder / 'model.safetensors')
    save_file({name: weight.to(torch.int8) for name, weight in weights.items()}, folder / 'model.int8.safetensors')
    with zipfile.ZipFile(folder / 'optimizer.bin', 'w', zipfile.ZIP_DEFLATED) as archive:
        archive.writestr('state', bytes(10_000))
    write('scheduler.bin', 'x')(folder)


FOLDERS = [
    *(torch_files(legacy, parts) for legacy in (False, True) for parts in (False, True)),
    sharded,
    named,
    extra_files,
    # a buffer of integers, which older releases saved
    weights_of('model.safetensors', lambda weights: {
        **weights, 'model.position_ids': torch.arange(9)
    }),
    change('config.json', max_position_embeddings=10_485_760),
    change('config.json', num_labels=3, tokens_seen=15 * 10 ** 12, transformers_weights=None),
    change('tokenizer_config.json', model_max_length=10 ** 30),
]


@pytest.mark.parametrize('make', FOLDERS)
def test_a_model_in_a_folder(good, folder, make, all_weights):
    make(folder)
    assert torch.equal(logits(load(folder)), logits(load(good / 'model')))
    assert load_tokenizer(str(folder)).eos_token == '<eos>'


def test_few_weights_with_large_masks(handed):
    """The smallest TinyStories models have nine times as many bytes of masks as of weights."""
    sizes = dict(hidden_size=64, num_heads=16, num_layers=8, attention_types=[[['global', 'local'], 4]])
    model = CausalLM(config=dict(model_type='gpt_neo', vocab_size=64, max_position_embeddings=2048, **sizes))
    model.save_pretrained(str(handed))
    load(handed)


@pytest.mark.parametrize('kind', ['quantized', 'plain', 'gguf'])
def test_four_weights_in_a_byte(folder, monkeypatch, all_weights, kind):
    """As in files of two bits for each weight, which a config says; it is not refused for its size."""
    pytest.importorskip('gguf')
    lm = write_gguf(str(folder)) if kind == 'gguf' else load(folder)
    if kind == 'quantized':
        change('config.json', quantization_config=dict(quant_method='gptq', bits=2, group_size=128))(folder)
    monkeypatch.setattr(os.path, 'getsize', lambda path: sum(p.numel() for p in lm.parameters()) // 4)
    try:
        load(folder, gguf_file='tiny.gguf' if kind == 'gguf' else None)
        told = ''
    except ConfigError as error:
        told = error.message
    assert ('its config describes a model' in told) == (kind == 'plain') and (kind != 'gguf' or told == '')


def test_two_bits(folder):
    """A BitNet, which packs four weights into an integer."""
    pytest.importorskip('accelerate')

    def packed(weights):
        names = [name for name in weights if name.endswith('_proj.weight')]
        weights.update({f'{name}_scale': torch.ones(1) for name in names})
        return {**weights, **{name: weights[name][::4].to(torch.uint8).contiguous() for name in names}}

    weights_of('model.safetensors', packed)(folder)
    kind = dict(quant_method='bitnet', linear_class='bitlinear', quantization_mode='offline')
    change('config.json', quantization_config=kind)(folder)
    assert load(folder).get_parameter('lm_head.weight').dtype == torch.float32


def test_a_gguf_file_beside_weights_that_nobody_has_downloaded(folder, all_weights):
    pytest.importorskip('gguf')
    write_gguf(str(folder))
    write('model.safetensors', LFS)(folder)
    load(folder, gguf_file='tiny.gguf')


def test_a_model_that_is_made_here():
    sizes = dict(hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1)
    build_causal_lm(None, dict(model_type='llama', vocab_size=262_144, **sizes), 'float32', None, 'policy.model')
    for key, value, most in (('num_hidden_layers', 100_001, 100_000), ('vocab_size', 10 ** 10, 10 ** 9)):
        with pytest.raises(ConfigError, match=f'policy.model.config.{key} = {value}: must be at most {most}'):
            build_causal_lm(None, dict(TINY, **{key: value}), 'float32', None, 'policy.model')


@pytest.mark.parametrize('step', [10, long(1)])
def test_every_default_config_of_transformers(tmp_path, step):
    names, checked = sorted(CONFIG_MAPPING.keys())[::step], 0
    for name in names:
        try:
            config = CONFIG_MAPPING[name]()
        except Exception:  # needs arguments
            continue
        config.to_json_file(tmp_path / 'config.json', use_diff=False)
        check_model_folder(str(tmp_path), name)
        checked += 1
    assert checked > 0.9 * len(names)


@pytest.mark.parametrize(
    'config', [
        dict(model_type='doge', num_experts=16384, num_hidden_layers=1, hidden_size=8, num_attention_heads=1),
        dict(model_type='gemma3n_text', vocab_size_per_layer_input=262144),
        dict(model_type='qwen2_moe', shared_expert_intermediate_size=20480),
        dict(model_type='muse_spark_text', layer_rope_theta=[500000.0] * 2),
    ]
)
def test_a_config_with_values_as_published(tmp_path, config):
    write('config.json', json.dumps(config))(tmp_path)
    check_model_folder(str(tmp_path), 'key')
