"""Where the files of a model are, and which are used; damaged and hostile folders are in ``tests/handed_over/``."""
import shutil

import pytest

from ding_common import ConfigError, check_links
from ding_common.hub import language_model
from ding_common.hub.language_model import build_causal_lm
from dizoo_llm.envs import TokenEnv
from dizoo_llm.text.tokenizer import build_word_tokenizer, end_ids, load_tokenizer
from tests.handed_over.helper import DEEP, change, write


def load(folder, config=None):
    return build_causal_lm(folder if folder is None else str(folder), config, 'float32', None, 'policy.model')


@pytest.fixture
def folder(tmp_path, tiny_model):
    tiny_model.save_pretrained(str(tmp_path / 'model'), build_word_tokenizer(['a', 'b']))
    return tmp_path / 'model'


@pytest.mark.parametrize('content', ['nope', '{"eos_token_id": ["x"]}', DEEP])
def test_wrong_generation_defaults(folder, content):
    write('generation_config.json', content)(folder)
    with pytest.raises(ConfigError, match='generation_config.json'):
        end_ids(load_tokenizer(str(folder)))


def test_a_model_of_too_many_parts(folder, monkeypatch):
    """No key has a large value, but their product is large."""
    monkeypatch.setattr(language_model, 'MOST_MODULES', 10)
    for pretrained, config in ((folder, None), (None, dict(model_type='llama'))):
        with pytest.raises(ConfigError, match='its config describes a model of more than 10 modules') as caught:
            load(pretrained, config)
        assert '\n' not in caught.value.message and len(caught.value.message) < 500
    monkeypatch.setattr(language_model, 'MOST_MODULES', 40)
    load(folder)


def test_weights_without_a_place_are_told(folder):
    change('config.json', num_hidden_layers=1)(folder)
    with pytest.warns(UserWarning, match="9 of its weights are not in the model, for example 'model.layers.1"):
        load(folder)


@pytest.mark.parametrize('value', [5, ['a'], {}])
def test_neither_folder_nor_name(value):
    with pytest.raises(ConfigError, match='policy.model.pretrained = .*: must be a folder or a hub name'):
        build_causal_lm(value, None, 'float32', None, 'policy.model')
    with pytest.raises(ConfigError, match='env.tokenizer'):
        TokenEnv(tokenizer=dict(pretrained=value))


def test_links_stay_in_the_folder(folder, tmp_path):
    (folder / 'below').mkdir()
    (folder / 'below' / 'here.json').symlink_to(folder / 'config.json')
    (tmp_path / 'name').symlink_to(folder)  # the user's own
    load(tmp_path / 'name')
    (tmp_path / 'model-of-another').mkdir()
    (folder / 'below' / 'out').symlink_to(tmp_path / 'model-of-another')
    for use in (load_tokenizer, load):
        with pytest.raises(ConfigError, match='pretrained = .*below/out is a link to .*, outside the folder'):
            use(str(folder))


def test_a_snapshot_in_the_hubs_cache_links_to_its_repository(folder, tmp_path):
    snapshot = tmp_path / 'models--a--b' / 'snapshots' / 'abc'
    shutil.copytree(folder, snapshot)
    (tmp_path / 'models--a--b' / 'blobs').mkdir()
    (snapshot / 'model.safetensors').rename(tmp_path / 'models--a--b' / 'blobs' / 'f00')
    (snapshot / 'model.safetensors').symlink_to('../../blobs/f00')
    load(snapshot)
    (tmp_path / 'models--c--d').mkdir()
    (snapshot / 'out').symlink_to(tmp_path / 'models--c--d')
    with pytest.raises(ConfigError, match='outside the folder'):
        check_links(str(snapshot), 'policy.model.pretrained')
