"""A pretrained model whose weights become small as they are read."""
import json
import os
import sys
import warnings
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM

from benchmarks.shared.memory import last_line, peak_growth
from ding_common import ConfigError
from ding_common.hub import weight_by_weight
from ding_grpo.model import CausalLM, causal_lm
from ding_grpo.model.quantized import Packed
from tests.cases import brief
from tests.same import same

LORA = dict(r=2, target_modules=['q_proj', 'v_proj'])
SIZES = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    head_dim=8,
    num_key_value_heads=2
)
KINDS = dict(
    llama=dict(tie_word_embeddings=False),
    qwen2=dict(tie_word_embeddings=True),  # has biases
    gemma3_text=dict(sliding_window=8),
    mixtral=dict(num_local_experts=2),  # its experts are one weight
)


@pytest.fixture(autouse=True)
def packages():
    pytest.importorskip('bitsandbytes')
    pytest.importorskip('peft')


def made(folder, kind='llama', size='20KB', **config):
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SIZES, **KINDS[kind], **config})
    AutoModelForCausalLM.from_config(config).save_pretrained(str(folder), max_shard_size=size)
    return str(folder)


def loaded(folder, monkeypatch=None, **model):
    """The model as it is loaded, or with ``monkeypatch`` as it would be if it became small after it is loaded."""
    if monkeypatch is not None:
        monkeypatch.setattr(causal_lm, 'packing', lambda *_: nullcontext())
    torch.manual_seed(1)
    return CausalLM(folder, **dict(dict(lora=LORA, quantize='4bit'), **model))


def content(model):
    kinds = {name: [cls.__name__ for cls in type(layer).__mro__] for name, layer in model.named_modules()}
    trained = {name: p.requires_grad for name, p in model.named_parameters()}
    with torch.no_grad():
        logits = model.lm(torch.arange(9)[None]).logits
    return dict(
        kinds=kinds,
        trained=trained,
        weights={
            **dict(model.named_parameters()),
            **dict(model.named_buffers())
        },
        logits=logits,
        random=torch.rand(1)
    )


@pytest.mark.parametrize('kind', brief(KINDS, ['llama', 'qwen2']))
@pytest.mark.parametrize('model', [dict(), dict(quantize='8bit', dtype='bfloat16')], ids=['4bit', '8bit, bfloat16'])
def test_the_same_bits_as_after_loading(kind, model, tmp_path, monkeypatch):
    folder = made(tmp_path, kind)
    assert len([name for name in os.listdir(folder) if name.endswith('.safetensors')]) > 1
    found = content(loaded(folder, **model))
    assert not any(name.startswith('HF_DEACTIVATE') for name in os.environ)
    same(found, content(loaded(folder, monkeypatch, **model)))


@pytest.mark.parametrize('trained', ['o_proj', 'layers.1.mlp'])
def test_weights_that_are_trained_beside_adapters_keep_their_numbers(trained, tmp_path, monkeypatch):
    folder = made(tmp_path / 'base')
    lora = dict(LORA, modules_to_save=[trained])
    model = loaded(folder, lora=lora)
    found = content(model)
    model.save_pretrained(str(tmp_path / 'adapters'))
    again = content(loaded(folder, lora=str(tmp_path / 'adapters')))
    same(again['logits'], found['logits'])
    same(found, content(loaded(folder, monkeypatch, lora=lora)))


@pytest.mark.parametrize(
    'adapted, trained', [
        (['gate_proj'], 'up_proj'),
        (['q_proj', 'gate_proj', 'up_proj'], 'down_proj'),
    ]
)
def test_parts_of_a_unit_with_different_types(adapted, trained, tmp_path):
    """Adapters are in float32, and what is trained whole beside them in bfloat16."""
    lora = dict(LORA, target_modules=adapted, modules_to_save=[trained])
    assert loaded(made(tmp_path), lora=lora, dtype='bfloat16').way


def test_tied_weights_inside_the_layers(tmp_path, monkeypatch):
    tied = {f'model.layers.1.self_attn.{name}': f'model.layers.0.self_attn.{name}' for name in ('q_proj.weight', )}
    tied['lm_head.weight'] = 'model.layers.0.mlp.gate_proj.weight'
    monkeypatch.setattr(LlamaForCausalLM, '_tied_weights_keys', tied)
    folder = made(tmp_path, tie_word_embeddings=True, vocab_size=48, hidden_size=32, intermediate_size=48)
    same(content(loaded(folder)), content(loaded(folder, monkeypatch)))


def _without(tensors):
    del tensors['model.layers.1.self_attn.q_proj.weight']


def _with_another(tensors):
    tensors['model.layers.1.self_attn.s_proj.weight'] = torch.ones(2, 2)


def _of_another_shape(tensors):
    tensors['model.layers.1.self_attn.q_proj.weight'] = torch.ones(31, 32)


def _of_integers(tensors):
    tensors['model.layers.1.self_attn.q_proj.weight'] = torch.ones(32, 32, dtype=torch.int64)


@pytest.mark.parametrize(
    'change, message', [
        (_without, "1 of the weights that its config.json requires are missing, for example 'model.layers.1.self_attn"),
        (_with_another, "1 of its weights are not in the model, for example 'model.layers.1.self_attn.s_proj.weight'"),
        (_of_another_shape, 'the shapes of its weights do not match its config.json'),
        (_of_integers, "its weight 'model.layers.1.self_attn.q_proj.weight' must have floating-point numbers"),
    ],
    ids=['missing', 'unexpected', 'shape', 'integers']
)
def test_names_and_shapes_are_checked(change, message, tmp_path, monkeypatch):
    folder = made(tmp_path, size='1GB')
    tensors = load_file(f'{folder}/model.safetensors')
    change(tensors)
    save_file(tensors, f'{folder}/model.safetensors', dict(format='pt'))
    said = []
    for patch in (None, monkeypatch):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            try:
                loaded(folder, patch)
            except ConfigError as error:
                said.append(str(error))
            else:
                said.append([str(w.message) for w in caught if issubclass(w.category, UserWarning)])
    assert said[0] == said[1] and message in str(said[0])


def test_what_reading_changes_is_as_before(tmp_path, monkeypatch):
    monkeypatch.setenv('HF_DEACTIVATE_ASYNC_LOAD', 'no')
    before = LlamaForCausalLM._load_pretrained_model
    loaded(made(tmp_path))
    assert os.environ['HF_DEACTIVATE_ASYNC_LOAD'] == 'no' and LlamaForCausalLM._load_pretrained_model is before
    plain = AutoModelForCausalLM.from_pretrained(str(tmp_path))
    assert not any(p.stride() == (0, 0) for p in plain.parameters())


def test_a_weight_is_small_before_the_next_one_is_read(tmp_path, monkeypatch):
    events, unmapped, pack = [], weight_by_weight._unmapped, Packed.of

    class Read:

        def __init__(self, name, tensor):
            self.name, self.tensor = name, tensor

        def __getitem__(self, index):
            events.append(self.name)
            return self.tensor[index]

    monkeypatch.setattr(
        weight_by_weight, '_unmapped',
        lambda files: {name: Read(name, tensor)
                       for name, tensor in unmapped(files).items()}
    )
    monkeypatch.setattr(Packed, 'of', lambda *args: events.append('small') or pack(*args))
    loaded(made(tmp_path))
    linear = [i for i, name in enumerate(events) if '_proj' in name]
    assert len(linear) == 2 * 7 == events.count('small')
    assert all(events[i + 1] == 'small' for i in linear)


@pytest.mark.algotest
@pytest.mark.skipif(not os.path.exists('/proc/self/clear_refs'), reason='reads memory from the files of Linux')
def test_memory_is_that_of_the_small_model(tmp_path):
    tiny = made(tmp_path / 'tiny')
    folder = made(
        tmp_path / 'large', size='60MB', hidden_size=512, intermediate_size=1408, num_hidden_layers=20, head_dim=64
    )
    code = f'from tests.model.test_weight_by_weight import measure; measure({tiny!r}, {folder!r})'
    now, after, whole, small, largest = json.loads(last_line([sys.executable, '-c', code]))
    assert whole > 190 and small < 0.3 * whole
    assert after > whole  # it had all of both
    assert now < small + 8 * largest


def measure(tiny, folder):
    """Print the peaks of a model that becomes small while it is read and after, and the sizes of both and of the
    largest weight, in MiB."""
    loaded(tiny, quantize='8bit')  # libraries are loaded
    models = []
    peaks = [peak_growth(lambda: models.append(loaded(folder, quantize='8bit')))]
    small = models.pop()
    sizes = [x.nbytes for x in (*small.parameters(), *small.buffers())]
    with torch.device('meta'):
        plain = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    of_plain = [x.nbytes for x in plain.parameters()]
    causal_lm.packing = lambda *_: nullcontext()
    peaks.append(peak_growth(lambda: models.append(loaded(folder, quantize='8bit'))))
    same(content(small)['weights'], content(models[0])['weights'])
    print([*peaks, *(x / 2 ** 20 for x in (sum(of_plain), sum(sizes), max(of_plain)))])
