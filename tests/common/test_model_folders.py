"""Model folders that are damaged, or made to do harm: one sentence, and none of their code runs."""
import json
import os
import pickle
import shutil

import pytest
import torch

from ding_common import ConfigError, check_links
from ding_common.hub import language_model
from ding_common.hub.language_model import build_causal_lm
from dizoo_llm.envs import TokenEnv
from dizoo_llm.text.tokenizer import build_word_tokenizer, end_ids, load_tokenizer

DEEP = '[' * 100_000


class Evil:

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path, )


@pytest.fixture(scope='module')
def good(tmp_path_factory):
    """A model folder, and the same in several files."""
    folder = tmp_path_factory.mktemp('models')
    torch.manual_seed(0)
    config = dict(model_type='llama', vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=2)
    model = build_causal_lm(None, dict(config, num_attention_heads=2), 'float32', None, 'policy.model')
    for name, size in (('whole', '1GB'), ('parts', '2KB')):
        model.save_pretrained(folder / name, max_shard_size=size)
        build_word_tokenizer(['a', 'b']).save_pretrained(folder / name)
    return folder


def change(name, **values):
    """In a JSON file of a folder."""

    def apply(folder):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return apply


def write(name, content):
    return lambda folder: (folder / name).write_text(content)


def remove(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def truncate(folder):
    content = (folder / 'model.safetensors').read_bytes()
    (folder / 'model.safetensors').write_bytes(content[:len(content) // 2])


def lose_a_part(folder):
    sorted(folder.glob('*.safetensors'))[1].unlink()


def evil_pickle(save):

    def apply(folder):
        (folder / 'model.safetensors').unlink()
        save({'model.norm.weight': Evil(str(folder / 'evil'))}, folder / 'pytorch_model.bin')

    return apply


def evil_code(folder):
    change('config.json', model_type='evil', auto_map=dict(AutoConfig='evil.C', AutoModelForCausalLM='evil.M'))(folder)
    change('tokenizer_config.json', tokenizer_class='Evil', auto_map=dict(AutoTokenizer=['evil.T', None]))(folder)
    (folder / 'evil.py').write_text(f'import os\nos.mkdir({str(folder / "evil")!r})')


@pytest.mark.unittest
class TestModelFolder:

    @pytest.mark.parametrize(
        'base, harm, message', [
            ('whole', remove('config.json'), 'the folder contains no config.json'),
            ('whole', remove('model.safetensors'), 'no file named model.safetensors'),
            ('whole', truncate, 'SafetensorError'),
            ('whole', write('model.safetensors', ''), 'SafetensorError'),
            ('parts', lose_a_part, 'No such file or directory: .*model-00002'),
            ('whole', change('config.json', hidden_size=16), 'the shapes of its weights do not match its config.j'),
            (
                'whole', change('config.json', num_hidden_layers=3),
                "9 of the weights that .* are missing, for example 'model.layers.2"
            ),
            ('whole', change('config.json', model_type='nope'), 'model type `nope`'),
            ('whole', change('config.json', hidden_size='x'), "'hidden_size' expected int"),
            ('whole', change('config.json', num_attention_heads=0), 'ZeroDivisionError'),
            ('whole', write('config.json', '{nope'), 'not a valid JSON file'),
            ('whole', write('config.json', '[1]'), 'model_type'),
            ('whole', write('config.json', DEEP), 'RecursionError'),
            (
                'whole', evil_pickle(torch.save),
                'a pickle that contains other objects than weights; none of its code was executed'
            ),
            (
                'whole', evil_pickle(lambda data, path: path.write_bytes(pickle.dumps(data))),
                'none of its code was executed'
            ),
            ('whole', evil_code, 'it requires running its own code .trust_remote_code., which is not supported'),
        ]
    )
    @pytest.mark.filterwarnings('ignore:Detected pickle protocol')
    def test_of_a_model(self, good, tmp_path, base, harm, message):
        folder = tmp_path / 'model'
        shutil.copytree(good / base, folder)
        harm(folder)
        with pytest.raises(ConfigError, match=f"policy.model.pretrained = '.*': .*{message}") as caught:
            build_causal_lm(str(folder), None, 'float32', None, 'policy.model')
        assert len(caught.value.message) < 1000 and not (folder / 'evil').exists()

    @pytest.mark.parametrize(
        'harm, message', [
            (remove('tokenizer.json', 'tokenizer_config.json'), 'contains no tokenizer'),
            (write('tokenizer.json', ''), 'Expecting value'),
            (write('tokenizer.json', '{}'), 'contains no tokenizer that can be loaded'),
            (
                change('tokenizer.json', normalizer=dict(type='Precompiled', precompiled_charsmap='')),
                r'contains no tokenizer that can be loaded \(.*PanicException'
            ),
            (write('tokenizer.json', DEEP), 'contains no tokenizer that can be loaded'),
            (write('tokenizer_config.json', 'nope'), 'contains no tokenizer that can be loaded'),
            (evil_code, 'it requires running its own code .trust_remote_code., which is not supported'),
            (change('tokenizer_config.json', eos_token=None), 'no end-of-sequence token'),
        ]
    )
    def test_of_a_tokenizer(self, good, tmp_path, harm, message):
        folder = tmp_path / 'model'
        shutil.copytree(good / 'whole', folder)
        harm(folder)
        with pytest.raises(ConfigError, match=f"env.tokenizer.pretrained = '.*': .*{message}"):
            load_tokenizer(str(folder))
        assert not (folder / 'evil').exists()

    @pytest.mark.parametrize('content', ['nope', '{"eos_token_id": ["x"]}', DEEP])
    def test_of_its_generation_defaults(self, good, tmp_path, content):
        folder = tmp_path / 'model'
        shutil.copytree(good / 'whole', folder)
        (folder / 'generation_config.json').write_text(content)
        with pytest.raises(ConfigError, match='generation_config.json'):
            end_ids(load_tokenizer(str(folder)))

    def test_of_a_model_of_too_many_parts(self, good, monkeypatch):
        """No key has a large value, but their product is large."""
        monkeypatch.setattr(language_model, 'MOST_MODULES', 10)
        for pretrained, config in ((str(good / 'whole'), None), (None, dict(model_type='llama'))):
            with pytest.raises(ConfigError, match='its config describes a model of more than 10 modules') as caught:
                build_causal_lm(pretrained, config, 'float32', None, 'policy.model')
            assert '\n' not in caught.value.message and len(caught.value.message) < 500
        monkeypatch.setattr(language_model, 'MOST_MODULES', 40)
        build_causal_lm(str(good / 'whole'), None, 'float32', None, 'policy.model')

    def test_weights_without_a_place_are_told(self, good, tmp_path):
        folder = tmp_path / 'model'
        shutil.copytree(good / 'whole', folder)
        change('config.json', num_hidden_layers=1)(folder)
        with pytest.warns(UserWarning, match="9 of its weights are not in the model, for example 'model.layers.1"):
            build_causal_lm(str(folder), None, 'float32', None, 'policy.model')

    @pytest.mark.parametrize('value', [5, ['a'], {}])
    def test_neither_folder_nor_name(self, value):
        with pytest.raises(ConfigError, match='policy.model.pretrained = .*: must be a folder or a hub name'):
            build_causal_lm(value, None, 'float32', None, 'policy.model')
        with pytest.raises(ConfigError, match='env.tokenizer'):
            TokenEnv(tokenizer=dict(pretrained=value))

    def test_links_stay_in_the_folder(self, good, tmp_path):
        folder = tmp_path / 'model'
        shutil.copytree(good / 'whole', folder)
        (folder / 'below').mkdir()
        (folder / 'below' / 'here.json').symlink_to(folder / 'config.json')
        (tmp_path / 'name').symlink_to(folder)  # the user's own
        build_causal_lm(str(tmp_path / 'name'), None, 'float32', None, 'policy.model')
        (tmp_path / 'model-of-another').mkdir()
        (folder / 'below' / 'out').symlink_to(tmp_path / 'model-of-another')
        for load in (load_tokenizer, lambda path: build_causal_lm(path, None, 'float32', None, 'policy.model')):
            with pytest.raises(ConfigError, match='pretrained = .*below/out is a link to .*, outside the folder'):
                load(str(folder))

    def test_a_snapshot_in_the_hubs_cache_links_to_its_repository(self, good, tmp_path):
        repository = tmp_path / 'models--a--b'
        snapshot = repository / 'snapshots' / 'abc'
        shutil.copytree(good / 'whole', snapshot)
        (repository / 'blobs').mkdir()
        (snapshot / 'model.safetensors').rename(repository / 'blobs' / 'f00')
        (snapshot / 'model.safetensors').symlink_to('../../blobs/f00')
        build_causal_lm(str(snapshot), None, 'float32', None, 'policy.model')
        (tmp_path / 'models--c--d').mkdir()
        (snapshot / 'out').symlink_to(tmp_path / 'models--c--d')
        with pytest.raises(ConfigError, match='outside the folder'):
            check_links(str(snapshot), 'policy.model.pretrained')
