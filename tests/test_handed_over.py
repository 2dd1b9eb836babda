"""
What somebody else hands over: folders of runs, adapters, models and tokenizers, and checkpoints. No code in it runs,
nothing outside of it is read, nothing hangs, and what is refused ends in one line.

A case has a name, a function that makes the input in an empty folder, a function that uses it as a user would, and a
part of the line that the user sees, or '' where the input does no harm and is used. To add one, add it to a list below.
"""
import json
import os
import pickle
import random
import shutil
import signal
import struct
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import Any, Callable, NamedTuple
from unittest import mock

import click
import pytest
import torch
from ding.entry import serial_pipeline_onpolicy
from easydict import EasyDict
from safetensors.torch import load_file, save_file

from ding_common.hub.language_model import build_causal_lm, load_reward_model
from ding_grpo.model import CausalLM
from ding_grpo.replay.command import main as replay
from ding_grpo.report.command import main as report
from ding_grpo.run.checkpoint import prune, read_checkpoint
from dizoo_llm import servers
from dizoo_llm.envs import TokenEnv
from dizoo_llm.play import main as play
from dizoo_llm.tasks import ThinkAnswerTask
from dizoo_llm.text.chat import encode_prompt, encode_prompts
from dizoo_llm.text.tokenizer import build_word_tokenizer, decode_after, load_tokenizer
from tests.gguf_file import write_gguf
from tests.shipped import small
from tests.tasks import Ask

pytestmark = pytest.mark.envtest
LIMIT = 300  # seconds until a test that hangs fails
SECRET = '{"train_iter": 1, "secret": 42}\n'
CODE = 'open({path!r}, "w")'  # what no case may run


class Case(NamedTuple):
    """An input, see the module's docstring."""
    name: str
    make: Callable[[Path], Any]
    use: Callable[[Path], Any]
    told: str


@pytest.fixture(scope='module')
def good(tmp_path_factory):
    """What a case begins with: ``model``, ``adapters`` of it, and ``run``, each in a folder of its own."""
    folder, before = tmp_path_factory.mktemp('good'), os.getcwd()
    os.chdir(folder)
    try:
        main, create = small('think_answer_grpo')
        main.policy.learn.learner = EasyDict(hook=dict(save_ckpt_after_iter=1))
        serial_pipeline_onpolicy((main, create), max_train_iter=2)
        for path in Path('run/ckpt').iterdir():
            if path.name != 'iteration_2.pth.tar':
                path.unlink()
        torch.manual_seed(0)
        CausalLM(config=dict(main.policy.model.config)).save_pretrained('model', build_word_tokenizer(['a', 'b']))
        lora = CausalLM(pretrained='model', lora=dict(r=2, target_modules=['q_proj']))
        lora.save_pretrained('adapters', build_word_tokenizer(['a', 'b']))
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def handed(good, tmp_path, monkeypatch):
    """
    An empty folder for the input. Beside it are the current folder, from which modules can be imported, ``outside``,
    which nobody may read, and ``good``.
    """
    for name in ('mine', 'handed', 'outside'):
        (tmp_path / name).mkdir()
    (tmp_path / 'good').symlink_to(good)
    (tmp_path / 'mine' / 'base').symlink_to(good / 'model')
    (tmp_path / 'mine' / 'evil.py').write_text(CODE.format(path=str(tmp_path / 'CODE_RAN')))
    (tmp_path / 'outside' / 'secret.jsonl').write_text(SECRET)
    shutil.copy(good / 'model' / 'model.safetensors', tmp_path / 'outside')
    monkeypatch.chdir(tmp_path / 'mine')
    monkeypatch.syspath_prepend(str(tmp_path / 'mine'))

    def too_late(*_):
        raise AssertionError('hangs')

    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(LIMIT)
    yield tmp_path / 'handed'
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    sys.modules.pop('evil', None)


def copy(name: str, folder: Path) -> None:
    shutil.copytree(folder.parent / 'good' / name, folder, dirs_exist_ok=True)


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


# ---------------------------------------------------------------------------------------------------------------- runs


def run(harm: Callable[[Path], Any]) -> Callable[[Path], None]:

    def make(folder: Path) -> None:
        copy('run', folder)
        harm(folder)

    return make


def importing(folder: Path) -> None:
    path = folder / 'total_config.py'
    path.write_text(path.read_text().replace("['ding_grpo']", "['ding_grpo', 'evil']"))


def python_task(folder: Path) -> None:
    path = folder / 'total_config.py'
    path.write_text(path.read_text().replace("'type': 'think_answer'", "'type': 'python', 'file': 'evil.py'"))


def total_config(text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / 'total_config.py').write_text(text)


def link_log(folder: Path) -> None:
    path = folder / 'log' / 'learner' / 'metrics.jsonl'
    path.unlink()
    path.symlink_to(folder.parent / 'outside' / 'secret.jsonl')


def pipe(name: str) -> Callable[[Path], None]:

    def harm(folder: Path) -> None:
        path = folder / name
        path.unlink()
        os.mkfifo(path)

    return harm


def see(folder: Path) -> None:
    report.main([str(folder)], standalone_mode=False)


def repeat(folder: Path) -> None:
    replay.main([str(folder / 'ckpt' / 'iteration_2.pth.tar')], standalone_mode=False)


def write_outside(name: str) -> Callable[[Path], None]:
    """A file of a run, into which it writes, leads outside."""

    def harm(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(folder.parent / 'outside' / 'secret.jsonl')

    return harm


def go_on(folder: Path) -> None:
    main, create = small('think_answer_grpo')
    main.exp_name, main.policy.learn.resume_training = os.path.relpath(folder), True
    serial_pipeline_onpolicy((main, create), max_train_iter=3)


DEEP = 'exp_config = ' + '[' * 100_000
PLAIN = 'contains more than plain values'
RUNS = [
    Case('a report about a config that imports', run(importing), see, ''),
    Case('a replay of it', run(importing), repeat, "env.import_names = 'evil'"),
    Case('a replay of a task in a Python file', run(python_task), repeat, "env.task.file = 'evil.py'"),
    Case('a report about a config that calls', run(total_config('exp_config = __import__("evil")')), see, ''),
    Case('a replay of it', run(total_config('exp_config = __import__("evil")')), repeat, PLAIN),
    Case('a report about a deep config', run(total_config(DEEP)), see, ''),
    Case('a replay of it', run(total_config(DEEP)), repeat, PLAIN),
    Case('a replay of a config that is a number', run(total_config('exp_config = 3')), repeat, PLAIN),
    Case('a report about a config of numbers', run(total_config('exp_config = {"env": 3, "policy": 4}')), see, ''),
    Case('a report about a huge number', run(total_config(f'exp_config = {{"env": 0x{"f" * 9999}}}')), see, ''),
    Case('a log that leads outside', run(link_log), see, 'outside the folder'),
    Case('a log that is a pipe', run(pipe('log/learner/metrics.jsonl')), see, 'is neither a file nor a folder'),
    Case('a config that is a pipe', run(pipe('total_config.py')), repeat, 'is not a file'),
    Case('a run that goes on', run(lambda folder: None), go_on, ''),
    Case('a run whose log is outside', run(write_outside('log/learner/metrics.jsonl')), go_on, 'outside the folder'),
    Case('a run whose lock is outside', run(write_outside('.lock')), go_on, 'outside the folder'),
    Case('a run whose config is outside', run(write_outside('total_config.py')), go_on, 'outside the folder'),
]

# ------------------------------------------------------------------------------------------------------------ adapters


def adapters(**values: Any) -> Callable[[Path], None]:
    """Adapters with other values in their ``adapter_config.json``."""

    def make(folder: Path) -> None:
        copy('adapters', folder)
        change(folder / 'adapter_config.json', base_model_name_or_path='base', **values)

    return make


def integers(name: str, start: str) -> Callable[[Path], None]:
    """Weights in a folder of adapters or of a model become integers."""

    def make(folder: Path) -> None:
        adapters()(folder) if name.startswith('adapter') else copy('model', folder)
        weights = load_file(folder / name)
        save_file(
            {n: t.to(torch.int64) if n.endswith(start) else t
             for n, t in weights.items()}, folder / name, dict(format='pt')
        )

    return make


def model_and_adapters(folder: Path) -> None:
    copy('model', folder)
    adapters(megatron_config=dict(a=1), megatron_core='evil')(folder)


def load(folder: Path) -> None:
    build_causal_lm(str(folder), None, None, None, 'policy.model')


REFUSED = 'in adapter_config.json: must be'
ADAPTERS = [
    Case('adapters as they are', adapters(), load, ''),
    Case('adapters that import by megatron', adapters(megatron_config=dict(a=1), megatron_core='evil'), load, REFUSED),
    Case('megatron without its core', adapters(megatron_config=dict(a=1)), load, "megatron_config = {'a': 1}"),
    Case(
        'adapters of a class elsewhere', adapters(auto_mapping=dict(base_model_class='A', parent_library='evil')), load,
        'must be a class of transformers'
    ),
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
    Case('factors in a list', adapters(alpha_pattern=['q_proj']), load, REFUSED),
    Case('a number that fills the memory', adapters(num_virtual_tokens=10 ** 9), load, REFUSED),
    Case('a number below 0', adapters(lora_alpha=-10 ** 9), load, REFUSED),
    Case('a config that is a text', adapters(eva_config='../outside'), load, REFUSED),
    Case('weights that are computed', adapters(init_lora_weights='pissa_niter_1000000000'), load, REFUSED),
    Case('weights that are quantized', adapters(init_lora_weights='loftq'), load, REFUSED),
    Case('adapters of integers', integers('adapter_model.safetensors', 'lora_A.weight'), load, 'floating-point'),
    Case('a model that loads adapters', model_and_adapters, load, 'contains both a model and adapters'),
    Case(
        'a reward model that loads adapters', model_and_adapters,
        lambda folder: load_reward_model(str(folder), 'float32', 'key'), 'contains both a model and adapters'
    ),
]

# -------------------------------------------------------------------------------------------------------------- models


def model(**values: Any) -> Callable[[Path], None]:
    """A model with other values in its ``config.json``."""

    def make(folder: Path) -> None:
        copy('model', folder)
        change(folder / 'config.json', **values)

    return make


def thin(folder: Path) -> None:
    """A model of terabytes, of whose weights only a small one is there."""
    model(num_hidden_layers=100, hidden_size=2 ** 16, intermediate_size=2 ** 18)(folder)
    save_file({'model.embed_tokens.weight': torch.zeros(32, 2 ** 16)}, folder / 'model.safetensors', dict(format='pt'))


def talkative(folder: Path) -> None:
    copy('model', folder)
    change(folder / 'generation_config.json', max_new_tokens=10 ** 12)


def index_outside(folder: Path) -> None:
    copy('model', folder)
    names = load_file(folder / 'model.safetensors')
    (folder / 'model.safetensors').unlink()
    where = {name: '../outside/model.safetensors' for name in names}
    (folder / 'model.safetensors.index.json').write_text(json.dumps(dict(metadata={}, weight_map=where)))


def torch_weights(folder: Path, convert: Callable = lambda t: t) -> None:
    copy('model', folder)
    weights = load_file(folder / 'model.safetensors')
    (folder / 'model.safetensors').unlink()
    torch.save({name: convert(weight) for name, weight in weights.items()}, folder / 'pytorch_model.bin')


def compress(path: Path) -> None:
    """Write the records of a file of torch again, compressed."""
    with zipfile.ZipFile(path) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
        for name, content in records.items():
            archive.writestr(name, content)


def compressed_weights(folder: Path) -> None:
    torch_weights(folder)
    compress(folder / 'pytorch_model.bin')


def other_name(folder: Path) -> None:
    """Compressed weights whose name only an index has."""
    compressed_weights(folder)
    names = torch.load(folder / 'pytorch_model.bin', weights_only=True)
    (folder / 'pytorch_model.bin').rename(folder / 'w.pt')
    index = dict(metadata={}, weight_map={name: 'w.pt' for name in names})
    (folder / 'pytorch_model.bin.index.json').write_text(json.dumps(index))


def index_of_a_list(folder: Path) -> None:
    copy('model', folder)
    (folder / 'model.safetensors').unlink()
    (folder / 'model.safetensors.index.json').write_text(json.dumps(dict(metadata={}, weight_map=['a', 'b'])))


def legacy_integers(folder: Path) -> None:
    """In the format before torch 1.6."""
    torch_weights(folder, lambda t: t.bool())
    torch.save(
        torch.load(folder / 'pytorch_model.bin', weights_only=True),
        folder / 'pytorch_model.bin',
        _use_new_zipfile_serialization=False
    )


def integer_biases(folder: Path) -> None:
    model(attention_bias=True)(folder)
    weights = load_file(folder / 'model.safetensors')
    biases = {n.replace('weight', 'bias'): w[:, 0].long() for n, w in weights.items() if 'self_attn' in n}
    save_file({**weights, **biases}, folder / 'model.safetensors', dict(format='pt'))


def integers_of_the_base(folder: Path) -> None:
    """The names of the weights lack the beginning, as of a model without a head."""
    model(tie_word_embeddings=True)(folder)
    weights = load_file(folder / 'model.safetensors')
    weights = {
        name.removeprefix('model.'): weight.long()
        for name, weight in weights.items() if name != 'lm_head.weight'
    }
    save_file(weights, folder / 'model.safetensors', dict(format='pt'))


def gguf(name: str, value: bytes) -> Callable[[Path], None]:
    """A GGUF file with another type and value of a number in its header."""

    def make(folder: Path) -> None:
        pytest.importorskip('gguf')
        known = write_gguf(str(folder)).config
        was = dict(block_count=known.num_hidden_layers, embedding_length=known.hidden_size)[name]
        old, content = name.encode() + struct.pack('<II', 4, was), (folder / 'tiny.gguf').read_bytes()
        assert old in content
        (folder / 'tiny.gguf').write_bytes(content.replace(old, name.encode() + value))

    return make


gguf_layers = gguf('block_count', struct.pack('<II', 4, 3_000_000))


def load_gguf(folder: Path) -> None:
    build_causal_lm(str(folder), None, None, None, 'policy.model', 'tiny.gguf')


SMALL = 'its config describes a model of'
MANY = 'must be at most 100000'
MODELS = [
    Case('a model as it is', model(), load, ''),
    Case('an index that leads outside', index_outside, load, 'must be names of files in the folder'),
    Case(
        'weights that lead outside', model(transformers_weights='../outside/model.safetensors'), load,
        'must be names of files in the folder'
    ),
    Case('three million layers', model(num_hidden_layers=3_000_000), load, f'num_hidden_layers = 3000000: {MANY}'),
    Case('layers under another name', model(model_type='gpt2', n_layer=3_000_000), load, MANY),
    Case('layers of a part', model(text_config=dict(num_hidden_layers=10 ** 12)), load, MANY),
    Case('layers of a tokenizer\'s model', model(num_hidden_layers=10 ** 12), lambda f: load_tokenizer(str(f)), MANY),
    Case('blocks', model(model_type='xlstm', num_blocks=3_000_000), load, f'num_blocks = 3000000: {MANY}'),
    Case('layers in a text', model(num_hidden_layers='3000000'), load, "'num_hidden_layers' expected int"),
    Case('dense layers', model(model_type='cohere2_moe', first_k_dense_replace=10 ** 9), load, MANY),
    Case('labels', model(num_labels=10 ** 9), load, MANY),
    Case('kinds of layers', model(model_type='gpt_neo', attention_types=[[['global'], 10 ** 9]]), load, MANY),
    Case(
        'masks that fill the memory',
        model(model_type='gpt_neo', max_position_embeddings=40_000, attention_types=[[['global'], 2]]), load,
        'and 3,200,000,'
    ),
    Case('a model without its weights', thin, load, SMALL),
    Case('a GGUF file without its weights', gguf('embedding_length', struct.pack('<II', 4, 2 ** 20)), load_gguf, SMALL),
    Case('layers of a GGUF file in a list', gguf('block_count', struct.pack('<IIQI', 9, 4, 1, 2)), load_gguf, MANY),
    Case(
        'a model that talks for ever', talkative, lambda folder: play.main([str(folder), 'a'], standalone_mode=False),
        'max_new_tokens = 1000000000000'
    ),
    Case('layers of a GGUF file', gguf_layers, load_gguf, MANY),
    Case('its tokenizer', gguf_layers, lambda folder: load_tokenizer(str(folder), 'tiny.gguf'), MANY),
    Case('a kernel of the hub', model(attn_implementation='somebody/kernel'), load, 'would run code of the hub'),
    Case('kernels of parts', model(attn_implementation={'': 'somebody/kernel'}), load, 'would run code of the hub'),
    Case('weights of integers', integers('model.safetensors', 'q_proj.weight'), load, 'floating-point numbers'),
    Case('biases of integers', integer_biases, load, 'floating-point numbers'),
    Case('integers of a model without a head', integers_of_the_base, load, 'floating-point numbers'),
    Case('weights of bools', lambda f: torch_weights(f, lambda t: t.bool()), load, 'floating-point numbers'),
    Case('the same in an old format', legacy_integers, load, 'floating-point numbers'),
    Case('compressed weights', compressed_weights, load, 'is compressed'),
    Case('compressed weights of another name', other_name, load, 'is compressed'),
    Case('an index that is a list', index_of_a_list, load, 'neither a folder with'),
    Case('a config that is a pipe', lambda f: (copy('model', f), pipe('config.json')(f)), load, 'neither a file nor'),
]

# ---------------------------------------------------------------------------------------------------------- tokenizers


def tokenizer(text: str) -> Callable[[Path], None]:
    """A tokenizer with a chat template."""

    def make(folder: Path) -> None:
        words = build_word_tokenizer(['a', 'b'])
        words.chat_template = text
        words.save_pretrained(folder)

    return make


def versions_outside(folder: Path) -> None:
    tokenizer('{{ messages }}')(folder)
    change(folder / 'tokenizer_config.json', fast_tokenizer_files=['../outside/tokenizer.1.json'])


def gguf_outside(folder: Path) -> None:
    tokenizer('{{ messages }}')(folder)
    (folder / 'tokenizer.json').unlink()
    change(folder / 'tokenizer_config.json', gguf_file='../outside/tiny.gguf')


def multiplying(part: str, step: dict, name: str = 'tokenizer.json') -> Callable[[Path], None]:
    """A tokenizer of which a part makes a text longer in sixty steps."""

    def make(folder: Path) -> None:
        tokenizer('{{ messages[0].content }}')(folder)
        steps = dict(normalizer='normalizers', pre_tokenizer='pretokenizers', decoder='decoders')[part]
        shutil.copy(folder / 'tokenizer.json', folder / 'as-it-was.json')
        change(folder / 'tokenizer.json', **{part: {'type': 'Sequence', steps: [step] * 60}})
        if name != 'tokenizer.json':  # which the other file names
            (folder / 'tokenizer.json').rename(folder / name)
            (folder / 'as-it-was.json').rename(folder / 'tokenizer.json')
            change(folder / 'tokenizer_config.json', fast_tokenizer_files=[name])

    return make


def panicking(folder: Path) -> None:
    """A tokenizer whose regular expression is given up in the middle, by a panic."""
    copy('model', folder)
    split = dict(type='Split', pattern=dict(Regex='(a+)+$b'), behavior='Isolated', invert=False)
    change(folder / 'tokenizer.json', pre_tokenizer=split)


def panicking_decoder(folder: Path) -> None:
    build_word_tokenizer(['a', 'b']).save_pretrained(folder)
    steps = [dict(type='Fuse'), dict(type='Replace', pattern=dict(Regex='(a+)+$b'), content='')]
    change(folder / 'tokenizer.json', decoder=dict(type='Sequence', decoders=steps))


def ask(folder: Path) -> None:
    encode_prompt(load_tokenizer(str(folder)), 'a b')


def ask_in_env(folder: Path, **options: Any) -> None:
    TokenEnv(Ask('a b'), tokenizer=dict(pretrained=str(folder)), max_new_tokens=2, **options)


def ask_with_options(folder: Path) -> None:
    ask_in_env(folder, chat_options=dict(date='now'))


def talking(text: str) -> Callable[[Path], None]:
    """A model whose tokenizer has a chat template."""

    def make(folder: Path) -> None:
        copy('model', folder)
        tokenizer(text)(folder)

    return make


def play_many(folder: Path) -> None:
    play.main([str(folder), 'a' * 24], standalone_mode=False)


TWICE = dict(type='Replace', pattern=dict(String='a'), content='aa')
BYTES = dict(type='ByteLevel', add_prefix_space=False, trim_offsets=True, use_regex=False)
CHARACTERS = dict(type='Precompiled', precompiled_charsmap='')
LONG = 'times as long, must be at most 1000 times'
PANIC = 'env.tokenizer: it fails (PanicException: '
LOOP = '{% for i in range(99999) %}' * 4 + '{% endfor %}' * 4
LATE = '{{ messages[0].content }}{% if "a" in messages[0].content %}' + LOOP + '{% endif %}'
MACRO = '{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}'
FOLDED = '{{ 10 ** (10 ** 9) }}'
SLOW = 'its chat template took more than 1 s'
TEMPLATES = [
    ('a template', '{{ messages[0].content }}', ''),
    ('a template that loops', LOOP, SLOW),
    ('a template that loops for some chats', LATE, SLOW),
    ('a template that calls itself', MACRO, SLOW),
    ('a template that computes when it is compiled', FOLDED, SLOW),
    ('a template with a long number', '{{ 10 ** (10 ** 5) }}', 'ValueError: Exceeds the limit'),
    ('a template of many levels', '{% if 1 %}' * 3000 + '{% endif %}' * 3000, 'RecursionError: maximum recursion'),
    ('a template that fills the memory', '{{ messages[0].content * 10 ** 10 }}', 'MemoryError'),
    ('a template that writes much', '{{ "a" * 10 ** 7 }}', 'answers with more than 1,00'),
]
TOKENIZERS = [
    *(Case(name, tokenizer(text), ask, told) for name, text, told in TEMPLATES),
    *(Case(f'{name}, in an environment', tokenizer(text), ask_in_env, told) for name, text, told in TEMPLATES),
    Case(
        'a template with an option', tokenizer('{{ messages[0].content }}{% if date %}{% endif %}'), ask_with_options,
        ''
    ),
    Case('a template that loops, with an option', tokenizer(FOLDED + '{{ date }}'), ask_with_options, SLOW),
    Case(
        'a template that cannot be read, with an option', tokenizer('{% if date %}'), ask_with_options,
        'TemplateSyntaxError'
    ),
    Case(
        'a template that loops, in play', talking(FOLDED),
        lambda folder: play.main([str(folder), 'a'], standalone_mode=False), SLOW
    ),
    Case('a normalizer that doubles a text', multiplying('normalizer', TWICE), ask, LONG),
    Case('the same by another name', multiplying('normalizer', TWICE, 'tokenizer.4.0.0.json'), ask, LONG),
    Case('a decoder that doubles a text', multiplying('decoder', TWICE), ask, LONG),
    Case('bytes that become two', multiplying('pre_tokenizer', BYTES), ask, LONG),
    Case('characters that become others', multiplying('normalizer', CHARACTERS), ask, LONG),
    Case('a regular expression that takes long', panicking, play_many, PANIC),
    Case(
        'the same for several texts', panicking, lambda f: encode_prompts(load_tokenizer(str(f)), ['a' * 24] * 2), PANIC
    ),
    Case(
        'the same in a decoder', panicking_decoder, lambda f: decode_after(load_tokenizer(str(f)), [], [0] * 24), PANIC
    ),
    Case('a tokenizer of another folder', versions_outside, ask, 'must be names of files in the folder'),
    Case('a tokenizer of a file outside', gguf_outside, ask, 'must be names of files in the folder'),
]

# --------------------------------------------------------------------------------------------------------- checkpoints


def checkpoint(harm: Callable[[Any], Any]) -> Callable[[Path], None]:
    """The checkpoint of a run, with its content changed, or replaced by what ``harm`` returns."""

    def make(folder: Path) -> None:
        copy('run', folder)
        path = folder / 'ckpt' / 'iteration_2.pth.tar'
        state = torch.load(path, weights_only=True)
        changed = harm(state)
        torch.save(state if changed is None else changed, path)

    return make


def moments(convert: Callable) -> Callable[[Path], None]:
    return checkpoint(
        lambda s: s['optimizer']['state'][0].update(exp_avg=convert(s['optimizer']['state'][0]['exp_avg']))
    )


def file(harm: Callable[[Path], Any]) -> Callable[[Path], None]:

    def make(folder: Path) -> None:
        copy('run', folder)
        harm(folder / 'ckpt' / 'iteration_2.pth.tar')

    return make


def overlap(path: Path) -> None:
    """An archive whose records are the same bytes."""
    with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr('a/data/0', bytes(10_000))
        for i in range(1000):
            record = pickle.loads(pickle.dumps(archive.filelist[0]))
            record.filename = f'a/data/{i + 1}'
            archive.filelist.append(record)


def become_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def resume(folder: Path, **learn: Any) -> None:
    main, create = small('think_answer_grpo')
    main.policy.learn.update(learn, resume_training=True)
    path = str(folder / 'ckpt' / 'iteration_2.pth.tar')
    main.policy.learn.learner = EasyDict(hook=dict(load_ckpt_before_run=path))
    serial_pipeline_onpolicy((main, create), max_train_iter=3)


def resume_with_a_kept_normal(folder: Path) -> None:
    """``random.gauss`` draws two numbers and keeps one: here when the run starts again, not when it was saved."""

    def evaluation(task: ThinkAnswerTask) -> ThinkAnswerTask:
        random.setstate((*random.getstate()[:2], 0.5))
        return task

    with mock.patch.object(ThinkAnswerTask, 'evaluation', evaluation):
        resume(folder)


def shards(folder: str, *names: str) -> Callable[[Path], None]:
    return checkpoint(lambda state: state.update(shards=dict(folder=folder, sums={name: 1 for name in names})))


CONTENT = 'does not have the content of a run like this'
CHECKPOINTS = [
    Case('a checkpoint', checkpoint(lambda state: None), resume, ''),
    Case(
        'a checkpoint, by a config with other types', checkpoint(lambda state: None), partial(resume, weight_decay=0),
        ''
    ),
    Case('a checkpoint, to other random numbers', checkpoint(lambda state: None), resume_with_a_kept_normal, ''),
    Case('a compressed checkpoint', file(compress), resume, 'is compressed'),
    Case('records that overlap', file(overlap), resume, 'its records overlap'),
    Case('a checkpoint that is a pipe', file(become_pipe), resume, 'is not a file'),
    Case('a list', checkpoint(lambda state: [1]), resume, '[1], must be a dict'),
    Case('updates that are a text', checkpoint(lambda s: s.update(last_iter='x')), resume, "last_iter = 'x', must be"),
    Case('updates below 0', checkpoint(lambda s: s.update(last_iter=-5)), resume, 'last_iter = -5, must be'),
    Case('steps that are a bool', checkpoint(lambda s: s.update(last_step=True)), resume, 'last_step = True, must be'),
    Case('learned updates of a text', checkpoint(lambda s: s.update(updates='x')), resume, "updates = 'x', must be"),
    Case(
        'weights of integers',
        checkpoint(lambda s: s.update(model={name: weight.long()
                                             for name, weight in s['model'].items()})), resume,
        'torch.int64, must be torch.float32'
    ),
    Case('no groups of weights', checkpoint(lambda s: s['optimizer'].update(param_groups=[])), resume, CONTENT),
    Case(
        'a rate of a text', checkpoint(lambda s: s['optimizer']['param_groups'][0].update(lr='x')), resume,
        "param_groups.0.lr = 'x', must be a number"
    ),
    Case(
        'a rate of 400 digits', checkpoint(lambda s: s['optimizer']['param_groups'][0].update(lr=10 ** 400)), resume,
        'must be a number'
    ),
    Case('moments of another shape', moments(lambda t: t[:1]), resume, 'must be floating-point numbers with shape'),
    Case('moments of integers', moments(torch.Tensor.long), resume, 'must be floating-point numbers with shape'),
    Case('no moments', moments(lambda t: None), resume, CONTENT),
    Case('a collector that lacks its counters', checkpoint(lambda s: s['run'].update(collector={})), resume, CONTENT),
    Case(
        'a counter of a text', checkpoint(lambda s: s['run']['collector'].update(episodes='x')), resume,
        "collector.episodes = 'x', must be"
    ),
    Case('random numbers of a text', checkpoint(lambda s: s['run'].update(random='x')), resume, CONTENT),
    Case('the same, for a replay', checkpoint(lambda s: s['run'].update(random='x')), repeat, CONTENT),
    Case('no sizes of logs', checkpoint(lambda s: s['run'].__delitem__('logs')), resume, CONTENT),
    Case('no seed', checkpoint(lambda s: s['run'].__delitem__('seed')), resume, 'has seed None'),
    Case(
        'steps of 400 digits', checkpoint(lambda s: s['optimizer']['param_groups'][0].update(lr=10 ** 400)), resume,
        'param_groups.0.lr = 1000'
    ),
    Case('shards that are a number', checkpoint(lambda s: s.update(shards=5)), resume, 'shards = 5, must be a dict'),
    Case('shards without a name', checkpoint(lambda s: s.update(shards={})), resume, CONTENT),
    Case('shards outside', shards('a.shards', '../../outside/secret.jsonl'), resume, 'are not the names of a folder'),
    Case('shards in no folder', shards('..', 'secret.jsonl'), resume, 'are not the names of a folder'),
]

CASES = RUNS + ADAPTERS + MODELS + TOKENIZERS + CHECKPOINTS


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('case', CASES, ids=lambda case: case.name.replace(' ', '-'))
def test_what_is_handed_over(case, handed, monkeypatch):
    if case.told:
        monkeypatch.setattr(servers, 'SECONDS', 1.0)
    case.make(handed)
    try:
        case.use(handed)
        told = ''
    except click.ClickException as error:
        told = error.format_message()
    assert bool(told) == bool(case.told) and case.told in told
    assert '\n' not in told and len(told) < 1500
    assert not (handed.parent / 'CODE_RAN').exists()
    assert (handed.parent / 'outside' / 'secret.jsonl').read_text() == SECRET


def test_the_limit_of_a_template(handed):
    """As it is, which the other cases change."""
    tokenizer(LOOP)(handed)
    with pytest.raises(click.ClickException, match='its chat template took more than 5 s for'):
        ask(handed)


def test_a_folder_with_a_compressed_checkpoint_is_not_pruned(handed):
    """Its folders of shards are kept, as if it could not be read."""
    copy('run', handed)
    (handed / 'ckpt' / 'a.shards').mkdir()
    compress(handed / 'ckpt' / 'iteration_2.pth.tar')
    prune(str(handed / 'ckpt'), 9)
    assert (handed / 'ckpt' / 'a.shards').is_dir()


def test_trust_runs_what_a_replay_names(handed):
    """So that the other tests can fail."""
    run(importing)(handed)
    with pytest.raises(click.ClickException, match='--trust'):
        repeat(handed)
    replay.main([str(handed / 'ckpt' / 'iteration_2.pth.tar'), '--trust'], standalone_mode=False)
    assert (handed.parent / 'CODE_RAN').exists()


def test_a_checkpoint_of_another_policy_is_read(tmp_path):
    torch.save(dict(model=dict(a=torch.zeros(2)), last_iter=3, last_step=5), tmp_path / 'a.pth.tar')
    assert read_checkpoint(str(tmp_path / 'a.pth.tar'))['last_iter'] == 3
