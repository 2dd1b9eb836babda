"""Frozen weights in 4 and 8 bits beside adapters."""
import copy

import pytest
import torch
from torch.nn import functional as F

from ding_common import ConfigError
from ding_grpo.model import CausalLM
from ding_grpo.model.quantized import BLOCKS, QuantizedLinear
from tests.policies import token_policy, update
from tests.same import same

LORA = dict(r=4, target_modules=['q_proj', 'v_proj'])


@pytest.fixture
def base(tiny_model, tmp_path):
    pytest.importorskip('bitsandbytes')
    pytest.importorskip('peft')
    tiny_model.save_pretrained(str(tmp_path))
    return tmp_path


def policy_of(base, kind, **model):
    model = dict(model, lora=LORA, **({} if kind is None else dict(quantize=kind)))
    return token_policy(dict(model=model), base=base, learning_rate=1e-2)


def memory(model):
    return sum(x.numel() * x.element_size() for x in (*model.parameters(), *model.buffers()))


@pytest.mark.parametrize('kind', BLOCKS)
class TestPolicy:

    def test_samples_and_learns_with_the_same_numbers_and_resumes_bit_for_bit(self, base, kind):
        whole = policy_of(base, kind)
        before = copy.deepcopy(whole.model.state_dict())
        metrics = update(whole)
        assert metrics['sampler_gap_max'] < 1e-6 and metrics['grad_norm'] > 0
        assert whole.model.way_state()['way'] == 'shared'
        saved = copy.deepcopy(whole.learn_mode.state_dict())
        assert set(saved['model']) == set(before) and all('lora_' in name for name in before)
        update(whole, collect=1)
        again = policy_of(base, kind)
        again.learn_mode.load_state_dict(saved)
        update(again, collect=1)
        same(again.model.state_dict(), whole.model.state_dict())

    def test_takes_less_memory(self, base, kind):
        packed = policy_of(base, kind).model
        with open('/proc/self/maps') as f:  # one weight that is still mapped from the file keeps all of it
            assert str(base / 'model.safetensors') not in f.read()
        plain = policy_of(base, None).model
        linear = [m for m in packed.modules() if isinstance(m, QuantizedLinear)]
        assert len(linear) == 7 * len(packed.lm.model.layers)
        weights = sum(m.in_features * m.out_features for m in linear)
        saved = 4 * weights - sum(memory(m) for m in linear)
        assert memory(plain) - memory(packed) == saved
        small = sum(m.code.numel() * 4 for m in linear)
        bits = 4 if kind == '4bit' else 8
        assert 4 * weights - saved - small == weights * (bits / 8 + 4 / BLOCKS[kind])


@pytest.mark.parametrize('kind, most', [('4bit', 0.12), ('8bit', 0.015)])
def test_a_layer_is_that_of_its_wide_weight(kind, most):
    pytest.importorskip('bitsandbytes')
    torch.manual_seed(0)
    plain = torch.nn.Linear(128, 96)
    plain.requires_grad_(False)
    layer, x = QuantizedLinear(plain, kind), torch.randn(2, 5, 128, requires_grad=True)
    wide = layer.wide()
    assert (wide - plain.weight).abs().mean() < most * plain.weight.abs().mean()
    out, expected = layer(x), F.linear(x, wide, plain.bias)
    torch.testing.assert_close(out, expected)
    grad = torch.randn_like(out)
    found, = torch.autograd.grad(out, x, grad)
    torch.testing.assert_close(found, torch.autograd.grad(expected, x, grad)[0])
    with torch.autocast('cpu', torch.bfloat16):
        assert layer(x).dtype is torch.bfloat16


@pytest.mark.parametrize(
    'model, message', [
        (dict(quantize='4bit'), "quantize = '4bit': needs policy.model.lora"),
        (dict(quantize='nf4', lora=LORA), "quantize = 'nf4': must be one of '4bit', '8bit', or None"),
        (dict(quantize='8bit', lora=LORA, save_merged=True), 'save_merged = True would save the rounded weights'),
        (dict(quantize='4bit', lora=dict(LORA, use_dora=True)), 'use_dora = True needs whole weights'),
        (
            dict(quantize='8bit', lora=dict(LORA, target_parameters=['mlp.up_proj.weight'])),
            "target_parameters = .'mlp.up_proj.weight'. needs whole weights"
        ),
    ],
    ids=str
)
def test_one_line_for_wrong_ones(base, model, message):
    with pytest.raises(ConfigError, match=message):
        CausalLM(str(base), **model)
