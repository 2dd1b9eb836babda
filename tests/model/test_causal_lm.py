import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from ding_common import ConfigError
from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.model.read.decoding import WAYS
from dizoo_llm.text.tokenizer import build_word_tokenizer
from tests.model.helper import CPU, make, set_way


def test_each_distinct_prompt_once_padded_on_the_left():
    a, b = torch.tensor([5, 6, 7]), torch.tensor([8])
    batch = PromptBatch.of([a, b, a, a], CPU)
    assert batch.ids.tolist() == [[5, 6, 7], [0, 0, 8]]
    assert batch.mask.tolist() == [[1, 1, 1], [0, 0, 1]]
    assert batch.row.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize('way', WAYS)
def test_vocabulary_can_be_limited_to_the_tokenizers(tiny_model, way):
    tiny_model.limit_vocabulary(29)
    assert tiny_model.shares_prompts
    set_way(tiny_model, way)
    prompts = PromptBatch.of([torch.tensor([1, 2])], CPU)
    assert tiny_model.completion_logits(prompts, torch.tensor([[3, 4]])).shape == (1, 2, 29)
    decoding = tiny_model.start(prompts)
    assert decoding.logit.shape == decoding.step(torch.tensor([3])).shape == (1, 29)


class TestSave:

    @pytest.mark.parametrize('factor', [None, 2])
    def test_and_load(self, tiny_model, tmp_path, factor):
        other = None if factor is None else {name: 2 * value for name, value in tiny_model.state_dict().items()}
        tiny_model.save_pretrained(str(tmp_path), build_word_tokenizer([str(i) for i in range(29)]), 8, other)
        for a, b in zip(tiny_model.parameters(), CausalLM(pretrained=str(tmp_path)).parameters()):
            assert torch.equal(a * (factor or 1), b)
        plain = AutoModelForCausalLM.from_pretrained(str(tmp_path)).generation_config
        # LlamaConfig's own end of sequence is 2, an ordinary word of this vocabulary
        assert (plain.eos_token_id, plain.pad_token_id, plain.max_new_tokens) == (29, 30, 8)
        assert not plain.do_sample  # greedy, without a start that says something else
        assert json.load(open(tmp_path / 'config.json'))['eos_token_id'] == 29

    def saved_again(self, model, folder, limit, **defaults):
        """The generation defaults of a model that was trained from a folder with these."""
        model.save_pretrained(f'{folder}/start', build_word_tokenizer(['a']), 8)
        (folder / 'start' / 'generation_config.json').write_text(json.dumps(defaults))
        CausalLM(pretrained=f'{folder}/start').save_pretrained(f'{folder}/end', build_word_tokenizer(['a']), limit)
        return AutoModelForCausalLM.from_pretrained(f'{folder}/end').generation_config

    @pytest.mark.parametrize('most, limit, longest', [(None, 8, None), (30, 8, 30), (30, 50, 50)])
    def test_generation_defaults_are_those_of_the_start(self, tiny_model, tmp_path, most, limit, longest):
        """A limit of the length is no shorter than the training's, and the special tokens are the tokenizer's."""
        given = dict(do_sample=True, temperature=0.6, top_p=0.9, eos_token_id=5, max_new_tokens=most)
        end = self.saved_again(tiny_model, tmp_path, limit, **given)
        assert (end.do_sample, end.temperature, end.top_p, end.max_new_tokens) == (True, 0.6, 0.9, longest)
        assert (end.eos_token_id, end.pad_token_id) == (1, 2)

    def test_contradicting_generation_defaults_do_not_prevent_it(self, tiny_model, tmp_path):
        with pytest.warns(UserWarning, match='its generation settings are not saved, since they contradict'):
            end = self.saved_again(tiny_model, tmp_path, 8, do_sample=False, temperature=0.6)
        assert end.temperature in (None, 1.0)

    def test_a_saved_model_says_nothing_that_the_tokenizer_lacks(self, tiny_model, tmp_path):
        tiny_model.limit_vocabulary(5)
        tiny_model.save_pretrained(str(tmp_path), build_word_tokenizer(['a', 'b']), 12)
        out = AutoModelForCausalLM.from_pretrained(str(tmp_path)).generate(torch.tensor([[0, 1]]), min_new_tokens=12)
        assert out.max() < 5


class TestConfig:

    def test_keys_of_older_config_files_are_taken(self):
        lm = make('llama', change=dict(rope_theta=5e5, torch_dtype='float32')).lm
        assert lm.config.rope_parameters['rope_theta'] == 5e5

    @pytest.mark.parametrize(
        'name, change', [
            ('qwen3_moe', dict(head_dim=16)),
            ('glm4_moe', dict(head_dim=16)),
            ('cohere2', dict(head_dim=16, sliding_window_pattern=2)),
        ]
    )
    def test_keys_that_only_the_code_of_an_architecture_reads(self, name, change):
        assert make(name, change=change).lm.model.layers[0].self_attn.head_dim == 16

    @pytest.mark.parametrize(
        'args, message', [
            (dict(), 'exactly one'),
            (dict(pretrained='a', config=dict(model_type='llama')), 'exactly one'),
            (dict(config=dict(model_type='lama')), "'llama'"),
            (dict(config=dict()), 'model_type'),
            (dict(config=dict(model_type='qwen3_moe', head_dims=8)), 'head_dims = 8: unknown key; .*head_dim'),
            (dict(config=dict(model_type='llama'), dtype='float31'), 'float32'),
            (dict(config='llama'), 'must be a dict'),
            (dict(config=dict(model_type='llama', hidden_size='32')), 'hidden_size'),
            (dict(config=dict(model_type='t5')), "'t5'"),
            (dict(pretrained='/nowhere/at/all'), '/nowhere/at/all'),
        ],
        ids=str
    )
    def test_wrong_use_names_the_key(self, args, message):
        with pytest.raises(ConfigError, match=message) as caught:
            CausalLM(**args)
        assert 'policy.model' in caught.value.message
