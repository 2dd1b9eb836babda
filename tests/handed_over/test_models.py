"""Folders of adapters and of models."""
import json
import os
import pickle
import shutil
import struct
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file

from ding_common.hub.language_model import load_reward_model
from dizoo_llm.play import main as play
from dizoo_llm.text.tokenizer import load_tokenizer
from tests.gguf_file import write_gguf
from tests.handed_over.helper import (
    CODE, Case, DEEP, Evil, change, check, compress, load, name_of, of, pipe, remove, weights_of, write
)

pytestmark = [pytest.mark.envtest, pytest.mark.filterwarnings('ignore')]
CONFIG, WEIGHTS, INDEX = 'config.json', 'model.safetensors', 'model.safetensors.index.json'
WORDS = 'tokenizer_config.json'
ADAPTER_CONFIG, ADAPTER_WEIGHTS = 'adapter_config.json', 'adapter_model.safetensors'
load_float32 = partial(load, dtype='float32')

# ------------------------------------------------------------------------------------------------------------ adapters

keys = partial(change, ADAPTER_CONFIG)


def on_base(path):
    return keys(base_model_name_or_path=path)


def adapters(**values):
    return of('adapters', on_base('base'), keys(**values))


def integers(name, ending):
    return weights_of(name, lambda weights: {n: t.long() if n.endswith(ending) else t for n, t in weights.items()})


of_integers = integers(ADAPTER_WEIGHTS, 'lora_A.weight')


def with_adapters(folder):
    adapters(megatron_config=dict(a=1), megatron_core='evil')(folder)


def broken(*harms):
    """Adapters of a model beside them."""

    def base(folder):
        shutil.copytree(folder.parent / 'good' / 'model', folder.parent / 'base')
        on_base(str(folder.parent / 'base'))(folder)

    return of('adapters', base, *harms)


def link(name):
    return lambda folder: os.symlink('/etc', folder / name)


def load_reward(folder):
    load_reward_model(str(folder), 'float32', 'key')


def cut(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-100])


def evil_adapters(folder):
    remove(ADAPTER_WEIGHTS)(folder)
    (folder / 'adapter_model.bin').write_bytes(pickle.dumps(Evil(folder)))


def like(path):
    """A copy of a file beside the folder."""
    return lambda folder: shutil.copy(folder.parent / path, folder)


REFUSED, FLOATS, TWO = 'in adapter_config.json: must be', 'floating-point', 'contains both a model and adapters'
FORM, JOIN = 'adapter_config.json cannot be read (', 'its adapters cannot be added to'
BROKEN = [
    ('a deep config', broken(write(ADAPTER_CONFIG, DEEP)), f'{FORM}RecursionError'),
    ('an empty config', broken(write(ADAPTER_CONFIG, '{}')), f"{FORM}KeyError: 'base_model_name_or_path'"),
    ('no base', broken(on_base(None)), 'base_model_name_or_path = None in adapter_config.json is not a model name'),
    ('a base that has gone', broken(on_base('/gone')), "its base model '/gone' "),
    ('an unknown kind', broken(keys(peft_type='NOTHING')), f"{JOIN} '"),
    ('no LoRA', broken(keys(peft_type='PROMPT_TUNING', num_virtual_tokens=2)), 'its adapters'),
    ('other modules', broken(keys(target_modules=['q_proj', 'v_proj'])), "v_proj.lora_A.weight' is only in one"),
    ('another rank', broken(keys(r=3)), 'size mismatch'),
    ('half of the weights', broken(cut(ADAPTER_WEIGHTS)), 'SafetensorError'),
    ('a pickle', broken(evil_adapters), 'none of its code was executed'),
    ('no weights', broken(remove(ADAPTER_WEIGHTS)), JOIN),
    ('a model too', broken(like(f'base/{CONFIG}')), TWO),
    ('other defaults', broken(write('generation_config.json', 'nope')), 'generation_config.json cannot be read'),
    ('a link', broken(link('out')), 'is a link to /etc, outside the folder'),
    ('a link in the base', broken(link('../base/out')), 'base/out is a link to /etc, outside'),
    ('no config of the base', broken(remove(f'../base/{CONFIG}')), ': the folder contains no config'),
]
ELSEWHERE = dict(base_model_class='A', parent_library='evil')
ADAPTERS = [
    Case('adapters as they are', adapters(), load, ''),
    Case('adapters that import by megatron', adapters(megatron_config=dict(a=1), megatron_core='evil'), load, REFUSED),
    Case('adapters of a class elsewhere', adapters(auto_mapping=ELSEWHERE), load, 'must be a class of transformers'),
    Case('adapters that name others', adapters(adapters=dict(a='../outside')), load, REFUSED),
    Case('adapters that name a tokenizer', adapters(tokenizer_name_or_path='../outside'), load, REFUSED),
    Case('adapters that quantize', adapters(loftq_config=dict(loftq_iter=10 ** 9)), load, REFUSED),
    Case('adapters that copy layers', adapters(layer_replication=[[0, 10 ** 9]]), load, REFUSED),
    Case('a key that no release has yet', adapters(import_hook='evil'), load, REFUSED),
    Case('a rank that fills the memory', adapters(r=10 ** 9), load, REFUSED),
    Case('a pattern that is matched for ever', adapters(target_modules='(.|.)*x'), load, 'at most four repetitions'),
    Case('a pattern of ranks that is matched for ever', adapters(rank_pattern={'((.*)*)*x': 2}), load, REFUSED),
    Case('ranks in a list', adapters(rank_pattern={'q_proj': [10 ** 9]}), load, REFUSED),
    Case('names in 900 lists', adapters(target_modules=json.loads('[' * 900 + ']' * 900)), load, REFUSED),
    Case('a pattern in 900 groups', adapters(target_modules='(' * 900 + ')' * 900), load, REFUSED),
    Case('a factor that is a text', adapters(alpha_pattern=dict(q_proj='x')), load, REFUSED),
    Case('a factor of 400 digits', adapters(alpha_pattern=dict(q_proj=10 ** 400)), load, REFUSED),
    Case('a number that fills the memory', adapters(num_virtual_tokens=10 ** 9), load, REFUSED),
    Case('a number below 0', adapters(lora_alpha=-10 ** 9), load, REFUSED),
    Case('a config that is a text', adapters(eva_config='../outside'), load, REFUSED),
    Case('weights that are computed', adapters(init_lora_weights='pissa_niter_1000000000'), load, REFUSED),
    Case('weights that are quantized', adapters(init_lora_weights='loftq'), load, REFUSED),
    Case('adapters of integers', of('adapters', on_base('base'), of_integers), load, FLOATS),
    Case('a model that loads adapters', of('model', with_adapters), load, TWO),
    Case('a reward model that loads adapters', of('model', with_adapters), load_reward, TWO),
    *(Case(name, make, load_float32, told) for name, make, told in BROKEN),
]

# -------------------------------------------------------------------------------------------------------------- models


def model(**values):
    return of('model', change(CONFIG, **values))


def thin(folder):
    """A model of terabytes, of whose weights only a small one is there."""
    model(num_hidden_layers=100, hidden_size=2 ** 16, intermediate_size=2 ** 18)(folder)
    save_file({'model.embed_tokens.weight': torch.zeros(32, 2 ** 16)}, folder / WEIGHTS, dict(format='pt'))


def index_outside(folder):
    where = {name: '../outside/model.safetensors' for name in load_file(folder / WEIGHTS)}
    (folder / WEIGHTS).unlink()
    write(INDEX, json.dumps(dict(metadata={}, weight_map=where)))(folder)


def torch_weights(convert=lambda t: t, legacy=False):
    """A model with weights in a file of torch; ``legacy`` is the format before torch 1.6."""

    def harm(folder):
        weights = {name: convert(weight) for name, weight in load_file(folder / WEIGHTS).items()}
        (folder / WEIGHTS).unlink()
        torch.save(weights, folder / 'pytorch_model.bin', _use_new_zipfile_serialization=not legacy)

    return of('model', harm)


def compressed_weights(folder):
    """Of a name that only an index has."""
    torch_weights()(folder)
    weights = torch.load(folder / 'pytorch_model.bin', weights_only=True)
    compress((folder / 'pytorch_model.bin').rename(folder / 'w.pt'))
    index = dict(metadata={}, weight_map=dict.fromkeys(weights, 'w.pt'))
    write('pytorch_model.bin.index.json', json.dumps(index))(folder)


def biases(weights):
    found = {n.replace('weight', 'bias'): w[:, 0].long() for n, w in weights.items() if 'self_attn' in n}
    return {**weights, **found}


def base_alone(weights):
    """The names lack the beginning, as of a model without a head."""
    return {n.removeprefix('model.'): weight.long() for n, weight in weights.items() if n != 'lm_head.weight'}


def gguf(name, value):
    """A GGUF file with another type and value of a number in its header."""

    def make(folder):
        pytest.importorskip('gguf')
        known = write_gguf(str(folder)).config
        was = dict(block_count=known.num_hidden_layers, embedding_length=known.hidden_size)[name]
        old, content = name.encode() + struct.pack('<II', 4, was), (folder / 'tiny.gguf').read_bytes()
        assert old in content
        (folder / 'tiny.gguf').write_bytes(content.replace(old, name.encode() + value))

    return make


def evil_pickle(folder):
    (folder / WEIGHTS).unlink()
    (folder / 'pytorch_model.bin').write_bytes(pickle.dumps({'model.norm.weight': Evil(folder)}))


def evil_code(folder):
    change(CONFIG, model_type='evil', auto_map=dict(AutoConfig='evil.C', AutoModelForCausalLM='evil.M'))(folder)
    change('tokenizer_config.json', tokenizer_class='Evil', auto_map=dict(AutoTokenizer=['evil.T', None]))(folder)
    write('evil.py', CODE.format(path=str(folder.parent / 'CODE_RAN')))(folder)


def lose_a_part(folder):
    sorted(folder.glob('*.safetensors'))[1].unlink()


def load_gguf(folder):
    load(folder, gguf_file='tiny.gguf')


def talk(folder):
    play.main([str(folder), 'a'], standalone_mode=False)


def load_words(folder, gguf_file=None):
    load_tokenizer(str(folder), gguf_file)


talkative = change('generation_config.json', max_new_tokens=10 ** 12)
tied = change(CONFIG, tie_word_embeddings=True)
list_index = write(INDEX, '{"metadata": {}, "weight_map": ["a", "b"]}')
gguf_layers = gguf('block_count', struct.pack('<II', 4, 3_000_000))
SMALL, MANY = 'its config describes a model of', 'must be at most 100000'
NAMES, HUB, OWN_CODE = 'must be names of files in', 'would run code of the hub', 'requires running its own code'
NO_WORDS, NO_CODE = 'contains no tokenizer that can be loaded', 'none of its code was executed'
PANIC = dict(type='Precompiled', precompiled_charsmap='')
NEO = dict(model_type='gpt_neo', max_position_embeddings=40_000, attention_types=[[['global'], 2]])
MODELS = [
    Case('a model as it is', model(), load, ''),
    Case('a model in parts', of('parts'), load, ''),
    Case('an index that leads outside', of('model', index_outside), load, NAMES),
    Case('weights that lead outside', model(transformers_weights='../outside/model.safetensors'), load, NAMES),
    Case('three million layers', model(num_hidden_layers=3_000_000), load, f'num_hidden_layers = 3000000: {MANY}'),
    Case('layers under another name', model(model_type='gpt2', n_layer=3_000_000), load, MANY),
    Case('layers of a part', model(text_config=dict(num_hidden_layers=10 ** 12)), load, MANY),
    Case('layers of a tokenizer\'s model', model(num_hidden_layers=10 ** 12), load_words, MANY),
    Case('blocks', model(model_type='xlstm', num_blocks=3_000_000), load, f'num_blocks = 3000000: {MANY}'),
    Case('dense layers', model(model_type='cohere2_moe', first_k_dense_replace=10 ** 9), load, MANY),
    Case('labels', model(num_labels=10 ** 9), load, MANY),
    Case('kinds of layers', model(model_type='gpt_neo', attention_types=[[['global'], 10 ** 9]]), load, MANY),
    Case('masks that fill the memory', model(**NEO), load, 'and 3,200,000,'),
    Case('a model without its weights', of('model', thin), load, SMALL),
    Case('a GGUF file without its weights', gguf('embedding_length', struct.pack('<II', 4, 2 ** 20)), load_gguf, SMALL),
    Case('layers of a GGUF file in a list', gguf('block_count', struct.pack('<IIQI', 9, 4, 1, 2)), load_gguf, MANY),
    Case('layers of a GGUF file', gguf_layers, load_gguf, MANY),
    Case('its tokenizer', gguf_layers, partial(load_words, gguf_file='tiny.gguf'), MANY),
    Case('a model that talks for ever', of('model', talkative), talk, 'max_new_tokens = 1000000000000'),
    Case('a kernel of the hub', model(attn_implementation='somebody/kernel'), load, HUB),
    Case('kernels of parts', model(attn_implementation={'': 'somebody/kernel'}), load, HUB),
    Case('weights of integers', of('model', integers(WEIGHTS, 'q_proj.weight')), load, FLOATS),
    Case('biases', of('model', change(CONFIG, attention_bias=True), weights_of(WEIGHTS, biases)), load, FLOATS),
    Case('integers of a model without a head', of('model', tied, weights_of(WEIGHTS, base_alone)), load, FLOATS),
    Case('weights of bools', torch_weights(lambda t: t.bool()), load, FLOATS),
    Case('the same in an old format', torch_weights(lambda t: t.bool(), legacy=True), load, FLOATS),
    Case('compressed weights', compressed_weights, load, 'is compressed'),
    Case('an index that is a list', of('model', remove(WEIGHTS), list_index), load, 'neither a folder with'),
    Case('a config that is a pipe', of('model', pipe(CONFIG)), load, 'neither a file nor'),
    Case('no config', of('model', remove(CONFIG)), load, 'the folder contains no config.json'),
    Case('no weights', of('model', remove(WEIGHTS)), load, 'no file named model.safetensors'),
    Case('half of the weights', of('model', cut(WEIGHTS)), load_float32, 'SafetensorError'),
    Case('a part is missing', of('parts', lose_a_part), load, 'model-00002'),
    Case('other shapes', model(hidden_size=16), load_float32, 'the shapes of its weights do not match its config.j'),
    Case('a layer without weights', model(num_hidden_layers=3), load, "are missing, for example 'model.layers.2"),
    Case('an unknown kind', model(model_type='nope'), load, 'model type `nope`'),
    Case('a size that is a text', model(hidden_size='x'), load, "'hidden_size' expected int"),
    Case('no heads', model(num_attention_heads=0), load, 'ZeroDivisionError'),
    Case('a config that is not JSON', of('model', write(CONFIG, '{nope')), load, 'not a valid JSON file'),
    Case('a deep config', of('model', write(CONFIG, DEEP)), load, 'RecursionError'),
    Case('a pickle', of('model', evil_pickle), load_float32, NO_CODE),
    Case('code', of('model', evil_code), load_float32, OWN_CODE),
    Case('no tokenizer', of('model', remove('tokenizer.json', WORDS)), load_words, 'contains no tokenizer'),
    Case('a tokenizer without parts', of('model', write('tokenizer.json', '{}')), load_words, NO_WORDS),
    Case('a panic', of('model', change('tokenizer.json', normalizer=PANIC)), load_words, 'PanicException'),
    Case('a deep tokenizer', of('model', write('tokenizer.json', DEEP)), load_words, NO_WORDS),
    Case('a config of words', of('model', write(WORDS, 'nope')), load_words, NO_WORDS),
    Case('code of a tokenizer', of('model', evil_code), load_words, OWN_CODE),
    Case('no end', of('model', change(WORDS, eos_token=None)), load_words, 'no end-of-sequence token'),
]


@pytest.mark.parametrize('case', ADAPTERS + MODELS, ids=name_of)
def test_what_is_handed_over(case, handed):
    check(case, handed)
