import copy

import pytest
import torch
from torch import nn

from ding_common import ConfigError
from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.rl_utils import linear_log_prob, naive_method

from tests.model.helper import CPU, PLAIN, logits_alone, make, modules_called


class ScaledLinear(nn.Linear):
    """What an adapter's layer looks like: a Linear by descent, not by what it computes."""

    def forward(self, x):
        return super().forward(x) * 2


@pytest.mark.unittest
class TestOutputHead:

    def test_bias_and_limited_vocabulary(self, tiny_model):
        tiny_model.limit_vocabulary(20)
        head = tiny_model.output_head()
        assert head.weight.shape == (20, 32) and head.bias is None and head[2:] == (1, None, False)
        tiny_model.lm.lm_head.bias = nn.Parameter(torch.randn(32))
        assert torch.equal(tiny_model.output_head().bias, tiny_model.lm.lm_head.bias[:20])

    def test_measured_once_for_each_layer_and_no_trace_left(self, tiny_model):
        before = tiny_model.output_head()
        with modules_called() as called:
            assert tiny_model.output_head()[2:] == before[2:] and called == []
        assert not tiny_model.lm.lm_head._forward_hooks
        tiny_model.lm.lm_head = ScaledLinear(32, 32, bias=False)
        self.wrong(tiny_model, 'ScaledLinear')

    def test_a_copy_measures_its_own_layer(self, tiny_model):
        tiny_model.output_head()
        other = copy.deepcopy(tiny_model)
        assert other.output_head().weight.data_ptr() != tiny_model.output_head().weight.data_ptr()

    @pytest.mark.parametrize(
        'name, config, head',
        [
            ('gemma2', dict(intermediate_size=48, num_key_value_heads=2, head_dim=8), (1, 30)),  # soft cap
            ('opt', dict(ffn_dim=48, word_embed_proj_dim=32), (1, None)),
            ('gptj', dict(rotary_dim=4, n_embd=32, n_layer=2, n_head=4), (1, None)),  # bias
            ('cohere', dict(intermediate_size=48), (0.0625, None)),  # factor
            ('granite', dict(intermediate_size=48, logits_scaling=8.0), (1 / 8, None)),  # divisor
        ]
    )
    def test_logits_of_other_forms(self, name, config, head):
        model = make(name, dict(PLAIN, **config), scale=3)  # so that logits reach where a soft cap acts
        prompts = [torch.randint(0, 40, (n, )) for n in (5, 9)]
        batch, completion = PromptBatch.of(prompts, CPU), torch.randint(0, 40, (2, 4))
        assert model.output_head()[2:4] == pytest.approx(head)
        wanted = logits_alone(model, prompts, completion)
        assert torch.allclose(model.completion_logits(batch, completion), wanted, atol=1e-4)
        hidden = model.completion_hidden(batch, completion)
        found = linear_log_prob(hidden, index=completion, **model.output_head()._asdict())
        assert torch.allclose(found, naive_method(wanted, completion), atol=1e-4)

    def test_heads_that_do_not_fit_together_are_an_error_of_the_config(self):
        shape = dict(vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4)
        model = CausalLM(config=dict(model_type='qwen2', **shape))  # by default it has 32 key heads
        with pytest.raises(ConfigError, match='policy.model: Qwen2ForCausalLM fails to read tokens: RuntimeError'):
            model.output_head()

    @pytest.mark.parametrize('change', [lambda o: o * 2, lambda o: o.roll(1, -1)])
    def test_a_layer_that_computes_something_else_is_refused(self, tiny_model, change):
        layer = tiny_model.lm.lm_head
        hook = layer.register_forward_hook(lambda module, args, output: change(output))
        self.wrong(tiny_model, 'do not give its logits')
        hook.remove()
        forward = layer.forward
        layer.forward = lambda x: change(forward(x))
        self.wrong(tiny_model, 'do not give its logits')

    def test_a_learned_factor_is_refused(self, tiny_model):
        tiny_model.lm.factor = nn.Parameter(torch.tensor(2.))
        self.change_logits(tiny_model, lambda x: x * tiny_model.lm.factor)
        self.wrong(tiny_model, 'trainable weights besides')

    def test_an_output_layer_of_another_type_is_refused(self, tiny_model):
        tiny_model.lm.to(torch.bfloat16)
        tiny_model.lm.lm_head.float()
        tiny_model.lm.lm_head.register_forward_pre_hook(lambda module, args: (args[0].float(), ))
        self.wrong(tiny_model, 'does not read the last hidden states')

    def wrong(self, model, reason):
        with pytest.raises(ConfigError, match=f"log_prob_fn = 'linear_log_prob'.*{reason}.*efficient_method"):
            model.output_head()

    def test_an_adapters_layer_is_refused(self, tiny_model):
        tiny_model.lm.lm_head = ScaledLinear(32, 32, bias=False)
        self.wrong(tiny_model, 'ScaledLinear')

    def test_hidden_states_that_are_changed_before_the_output_layer_are_refused(self, tiny_model):
        # as MiniCPM does: the head divides them by a width
        tiny_model.lm.lm_head.register_forward_pre_hook(lambda module, args: (args[0] / 3, ))
        self.wrong(tiny_model, 'do not give its logits')

    def change_logits(self, model, change):
        forward = model.lm.forward

        def changed(*args, **kwargs):
            out = forward(*args, **kwargs)
            out.logits = change(out.logits)
            return out

        model.lm.forward = changed

    @pytest.mark.parametrize(
        'change',
        [torch.relu, lambda x: x + 1, lambda x: x.clamp(-5, 5), lambda x: x ** 3, lambda x: x * 0, lambda x: -x]
    )
    def test_logits_that_are_changed_in_an_unknown_way_are_refused(self, tiny_model, change):
        self.change_logits(tiny_model, change)
        self.wrong(tiny_model, 'neither the scaled nor the soft-capped')

    @pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
    def test_half_types(self, dtype):
        model = CausalLM(
            config=dict(
                model_type='gemma2',
                vocab_size=32,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=1,
                head_dim=8
            ),
            dtype=dtype
        )
        assert model.output_head()[2:4] == pytest.approx((1, 30), rel=1e-4)
