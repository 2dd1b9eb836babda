import pytest
import torch
from torch import nn

from ding_common import ConfigError
from ding_grpo.model.fast_linear import forget_casts
from ding_grpo.model.sharding import check_layers, layers_of
from tests.model.helper import make


@pytest.fixture
def model():
    return make('qwen2')


def test_each_layer_is_divided_by_itself_and_no_gradient_is_computed(model):
    check_layers(model)
    assert len(layers_of(model)) == 2 and all(p.grad is None for p in model.parameters())


def test_weights_that_some_tokens_do_not_use(model):
    """Processes that read other tokens would send gradients of other weights, and wait for each other forever."""
    model.lm.model.layers[1].expert = nn.Linear(2, 2, bias=False)
    with pytest.raises(ConfigError, match=r'some tokens do not use the weight layers.1.expert.weight'):
        check_layers(model)
    model.lm.model.layers[1].expert.requires_grad_(False)  # no gradient is sent
    check_layers(model)


def test_without_layers(model):
    model.lm.model.layers = nn.ModuleList()
    with pytest.raises(ConfigError, match='policy.shard = True: Qwen2ForCausalLM has no layers'):
        check_layers(model)


def test_converted_weights_are_dropped_with_the_weights():
    """Else new weights at the address of old ones would be taken for them."""
    model = make('llama', autocast='bfloat16')
    layer = model.lm.model.layers[0].mlp.up_proj
    layer.weight.requires_grad_(False)
    x = torch.ones(1, 32)
    with torch.autocast('cpu', torch.bfloat16):
        first = layer(x)
        layer.weight.data.mul_(0)  # the same address
        forget_casts(model)
        assert first.any() and not layer(x).any()
