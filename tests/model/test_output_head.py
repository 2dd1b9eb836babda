import copy

import pytest
import torch
from torch import nn

from ding_common import ConfigError
from ding_grpo.model import PromptBatch
from ding_grpo.rl_utils import naive_method
from tests.model.helper import CPU, learned, logits_alone, make, modules_called


class ScaledLinear(nn.Linear):
    """What an adapter's layer looks like: a Linear by descent, not by what it computes."""

    def forward(self, x):
        return super().forward(x) * 2


def scaled_linear(lm):
    lm.lm_head = ScaledLinear(32, 32, bias=False)


class TestMeasured:

    def test_bias_and_limited_vocabulary(self, tiny_model):
        tiny_model.limit_vocabulary(20)
        head = tiny_model.output_head()
        assert head.weight.shape == (20, 32) and head.bias is None and head[2:] == (1, None, False)
        tiny_model.lm.lm_head.bias = nn.Parameter(torch.randn(32))
        assert torch.equal(tiny_model.output_head().bias, tiny_model.lm.lm_head.bias[:20])

    def test_once_for_each_layer(self, tiny_model):
        before, other = tiny_model.output_head(), copy.deepcopy(tiny_model)
        with modules_called() as called:
            assert tiny_model.output_head()[2:] == before[2:] and called == []
        assert other.output_head().weight.data_ptr() != before.weight.data_ptr()  # a copy measures its own layer
        scaled_linear(tiny_model.lm)
        with pytest.raises(ConfigError, match='ScaledLinear'):
            tiny_model.output_head()

    @pytest.mark.parametrize(
        'name, head',
        [
            ('gemma2', (1, 30)),  # soft cap
            ('opt', (1, None)),
            ('gptj', (1, None)),  # bias
            ('cohere', (0.0625, None)),  # factor
            ('granite (multipliers)', (1 / 4, None)),  # divisor
        ]
    )
    def test_logits_of_other_forms(self, name, head):
        model = make(name, scale=3)  # so that logits reach where a soft cap acts
        prompts = [torch.randint(0, 40, (n, )) for n in (5, 9)]
        batch, completion = PromptBatch.of(prompts, CPU), torch.randint(0, 40, (2, 4))
        assert model.output_head()[2:4] == pytest.approx(head)
        wanted = logits_alone(model, prompts, completion)
        assert torch.allclose(model.completion_logits(batch, completion), wanted, atol=1e-4)
        assert torch.allclose(learned(model, batch, completion), naive_method(wanted, completion), atol=1e-4)

    @pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
    def test_in_half_types(self, dtype):
        model = make('gemma2', 1, dtype=dtype)
        assert model.output_head()[2:4] == pytest.approx((1, 30), rel=1e-4)


def hooked(change):
    """A hook changes what the layer returns."""
    return lambda lm: lm.lm_head.register_forward_hook(lambda module, args, output: change(output))


def given(change):
    """A hook changes the last hidden states before the layer."""
    return lambda lm: lm.lm_head.register_forward_pre_hook(lambda module, args: (change(args[0]), ))


def with_logits(change):
    """The model changes its logits after the layer."""

    def patch(lm):
        forward = lm.forward

        def changed(*args, **kwargs):
            out = forward(*args, **kwargs)
            out.logits = change(out.logits)
            return out

        lm.forward = changed

    return patch


def learned_factor(lm):
    lm.factor = nn.Parameter(torch.tensor(2.))
    with_logits(lambda x: x * lm.factor)(lm)


def other_type(lm):
    lm.to(torch.bfloat16)
    lm.lm_head.float()
    given(torch.Tensor.float)(lm)


CHANGED, UNKNOWN = 'do not give its logits', 'neither the scaled nor the soft-capped'


class TestRefused:

    @pytest.mark.parametrize(
        'change, reason',
        [
            (scaled_linear, 'ScaledLinear'),
            (hooked(lambda o: o * 2), CHANGED),
            (hooked(lambda o: o.roll(1, -1)), CHANGED),
            (given(lambda x: x / 3), CHANGED),  # as MiniCPM does: the head divides them by a width
            (other_type, 'does not read the last hidden states'),
            (learned_factor, 'trainable weights besides'),
            (with_logits(torch.relu), UNKNOWN),
            (with_logits(lambda x: x + 1), UNKNOWN),
            (with_logits(lambda x: x.clamp(-5, 5)), UNKNOWN),
            (with_logits(lambda x: x ** 3), UNKNOWN),
            (with_logits(lambda x: x * 0), UNKNOWN),
            (with_logits(lambda x: -x), UNKNOWN),
        ]
    )
    def test_what_is_no_scaled_or_soft_capped_product(self, tiny_model, change, reason):
        change(tiny_model.lm)
        with pytest.raises(ConfigError, match=f"log_prob_fn = 'linear_log_prob'.*{reason}.*efficient_method"):
            tiny_model.output_head()

    def test_heads_that_do_not_fit_together_are_an_error_of_the_config(self):
        model = make('qwen2', change=dict(num_key_value_heads=32))
        with pytest.raises(ConfigError, match='policy.model: Qwen2ForCausalLM fails to read tokens: RuntimeError'):
            model.output_head()
