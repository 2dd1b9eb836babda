import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from ding_common import ConfigError
from dizoo_llm.envs import TokenEnv
from dizoo_llm.interpolate import interpolate, main
from dizoo_llm.text.tokenizer import load_tokenizer


def model(seed, hidden_size=16, **more):
    torch.manual_seed(seed)
    sizes = dict(intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=32)
    return LlamaForCausalLM(LlamaConfig(hidden_size=hidden_size, **sizes, **more))


def saved(folder, seed):
    model(seed).save_pretrained(folder)
    TokenEnv().tokenizer.save_pretrained(folder)
    return str(folder)


def weights(folder):
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def check(folder, trained, start, share):
    found, start = weights(folder), weights(start)
    assert set(found) == set(trained)
    for name, weight in found.items():
        torch.testing.assert_close(weight, (1 - share) * trained[name] + share * start[name], rtol=1e-6, atol=1e-7)


class TestInterpolate:

    @pytest.mark.parametrize('share, option', [(0.2, []), (0.5, ['--share', '0.5'])])
    def test_a_folder_of_transformers(self, tmp_path, share, option):
        trained, start = (saved(tmp_path / name, seed) for seed, name in enumerate(('trained', 'start')))
        result = CliRunner().invoke(main, [trained, '--start', start, *option])
        assert result.exit_code == 0, result.output
        out = str(tmp_path / 'trained-interpolated')
        assert f'{1 - share:g} of {trained} and {share:g} of {start}: {out}\n' in result.output
        check(out, weights(trained), start, share)
        assert load_tokenizer(out).encode('3 4') == load_tokenizer(trained).encode('3 4')
        again = CliRunner().invoke(main, [trained, '--start', start])
        assert again.exit_code == 1 and f"Error: --out = '{out}': exists already" in again.output

    def test_adapters_are_merged_first(self, tmp_path):
        peft = pytest.importorskip('peft')
        start, adapters, out = saved(tmp_path / 'start', 0), str(tmp_path / 'adapters'), str(tmp_path / 'out')
        lora = peft.LoraConfig(r=2, target_modules='all-linear')
        adapted = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(start), lora)
        for name, weight in adapted.named_parameters():
            if 'lora_B' in name:
                torch.nn.init.normal_(weight)
        adapted.save_pretrained(adapters)
        load_tokenizer(start).save_pretrained(adapters)
        result = CliRunner().invoke(main, [adapters, '--start', start, '--out', out])
        assert result.exit_code == 0, result.output
        check(out, adapted.merge_and_unload().state_dict(), start, 0.2)

    def test_tied_weights_move_once(self):
        trained, start = (model(seed, tie_word_embeddings=True) for seed in (0, 1))
        wanted = 0.75 * trained.lm_head.weight + 0.25 * start.lm_head.weight
        torch.testing.assert_close(interpolate(trained, start, 0.25).model.embed_tokens.weight, wanted)
        assert trained.lm_head.weight is trained.model.embed_tokens.weight

    @pytest.mark.parametrize(
        'other, share, told', [
            (dict(hidden_size=32), 0.2, r'--start: the weight .* has the shape \(32, 16\) in the model and \(32, 32\)'),
            (dict(attention_bias=True), 0.2, 'has the shape none in the model'),
            (dict(), 1.5, '--share = 1.5: must be from 0 to 1'),
        ]
    )
    def test_what_does_not_fit_is_refused(self, other, share, told):
        with pytest.raises(ConfigError, match=told):
            interpolate(model(0), model(1, **other), share)
