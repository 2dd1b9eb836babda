"""Norms, gated units and rotary embeddings with fewer operations, beside the architectures' own classes."""
import pytest
import torch
from transformers.models.bamba import modeling_bamba
from transformers.models.cohere.modeling_cohere import CohereAttention, CohereConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nTextAttention, Gemma3nTextConfig
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaConfig, LlamaMLP, LlamaRMSNorm
from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3Config, Qwen3RMSNorm

from ding_grpo.model.fused import _rotated, fuse

MLP = LlamaConfig(hidden_size=8, intermediate_size=24, num_attention_heads=2)
LAYERS = dict(
    llama=lambda: LlamaRMSNorm(8, eps=1e-5),
    qwen3=lambda: Qwen3RMSNorm(8, eps=1e-3),
    gemma3=lambda: Gemma3RMSNorm(8),
    mlp=lambda: LlamaMLP(MLP),
)


def fused(name):
    """A layer with random weights, and its own class's."""
    torch.manual_seed(0)
    other, own = LAYERS[name](), LAYERS[name]()
    for p in own.parameters():
        torch.nn.init.normal_(p, std=0.7)
    other.load_state_dict(own.state_dict())
    fuse(torch.nn.Sequential(other))
    assert isinstance(other, type(own)) and type(other) is not type(own)
    return other, own


@pytest.mark.parametrize('frozen', [False, True], ids=['trained', 'frozen'])
@pytest.mark.parametrize('shape', [(8, ), (2, 3, 8)], ids=str)
@pytest.mark.parametrize('name', LAYERS)
def test_result_to_the_bit_and_gradients(name, shape, frozen):
    layers = fused(name)
    results, numbers = [], torch.linspace(-0.02, 3, torch.Size(shape).numel()).view(shape)
    with torch.no_grad():
        without_gradient = layers[0](numbers)
    for layer in layers:
        x = numbers.clone().requires_grad_()
        y = layer.requires_grad_(not frozen)(x)
        y.backward(torch.linspace(1, -2, y.numel()).view(y.shape[::-1]).permute(*range(y.dim())[::-1]))
        results.append((y, x.grad, *(p.grad for p in layer.parameters())))
    (y, *gradients), (of_own_class, *others) = results
    assert torch.equal(y, of_own_class) and torch.equal(y, without_gradient)
    for found, wanted in zip(gradients, others):
        if wanted is None:
            assert found is None
        else:
            assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-6 * wanted.abs().max().item())


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.double], ids=str)
def test_other_types_are_computed_by_the_architecture(dtype):
    layer, own = fused('llama')
    x = torch.linspace(-1, 3, 16, dtype=dtype).view(2, 8)
    assert torch.equal(layer(x), own(x)) and torch.equal(layer.to(dtype)(x), own.to(dtype)(x))


class OtherRMSNorm(LlamaRMSNorm):
    """It has the name of a norm, and computes another thing."""

    def forward(self, x):
        return x * self.weight


class WeightlessRMSNorm(LlamaRMSNorm):
    """It does not use its weight, as a norm of Falcon Mamba."""

    def forward(self, x):
        return super().forward(x) / self.weight


class ScaledRMSNorm(LlamaRMSNorm):
    """It needs a second argument."""

    def forward(self, x, scale):
        return super().forward(x) * scale


@pytest.mark.parametrize(
    'layer', [
        OtherRMSNorm(8),
        WeightlessRMSNorm(8),
        ScaledRMSNorm(8),
        MambaRMSNormGated(8, 8),
        torch.nn.RMSNorm(8),
        torch.nn.Linear(8, 8)
    ],
    ids=lambda layer: type(layer).__name__
)
def test_others_stay_as_they_are(layer):
    own = type(layer)
    fuse(torch.nn.Sequential(layer))
    assert type(layer) is own


def test_on_a_gpu_a_norm_is_one_launch(gpu):
    layer = fused('llama')[0].cuda()
    x = torch.linspace(-1, 3, 16).view(2, 8).cuda().requires_grad_()
    gpu.counts.reset()
    y = layer(x)
    assert dict(gpu.counts.launches) == {'_fused_rms_norm': 1}
    y.backward(torch.ones_like(y))
    assert gpu.counts.launches['_fused_rms_norm_backward'] == 1


def test_less_is_kept_for_the_backward_pass():
    kept = []
    for layer in fused('mlp'):
        sizes = {}
        x = torch.ones(100, 8, requires_grad=True)

        def keep(t):
            sizes[t.data_ptr()] = t.numel()
            return t

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            layer(x)
        kept.append(sum(sizes.values()))
    assert kept[0] <= kept[1] - 100 * 24


def attention(kind, config):
    """A fused attention, its own class's function, and arguments of its forward: 5 tokens in 2 rows."""
    torch.manual_seed(0)
    layer = kind(config, layer_idx=0).eval()
    fuse(torch.nn.Sequential(layer))
    angle = torch.linspace(0, 9, 80).view(2, 5, 8)
    return layer, kind.forward, (torch.randn(2, 5, 16), (angle.cos(), angle.sin()), None)


ATTENTION = LlamaConfig(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
QWEN = Qwen3Config(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=8)


class TestRotaryEmbedding:

    @pytest.mark.parametrize('kind, config', [(LlamaAttention, ATTENTION), (Qwen3Attention, QWEN)])
    def test_on_a_gpu_it_is_three_launches_with_the_same_bits(self, kind, config, gpu):
        layer, own, (x, angles, mask) = attention(kind, config)
        with torch.no_grad():
            wanted, _ = own(layer, x, angles, mask)
            layer, x, angles = layer.cuda(), x.cuda(), tuple(y.cuda() for y in angles)
            gpu.counts.reset()
            plain, _ = own(layer, x, angles, mask)
            before = gpu.counts.launches.total()
            gpu.counts.reset()
            results = [layer(x, angles, mask)[0] for _ in range(2)]
        # the first one has two more, for all layers
        assert gpu.counts.launches.total() == 2 * (before - 10 + 3) + 2
        assert all(torch.equal(found.cpu(), y.cpu()) for found in results for y in (wanted, plain))

    @pytest.mark.parametrize('trained', [False, True])
    def test_elsewhere_and_afterwards_it_is_the_own_function(self, trained, gpu):
        layer, own, (x, angles, mask) = attention(LlamaAttention, ATTENTION)
        if trained:
            layer, x, angles = layer.cuda(), x.cuda(), tuple(y.cuda() for y in angles)
        rotate, calls = modeling_llama.apply_rotary_pos_emb, gpu.counts.launches
        with torch.set_grad_enabled(trained):
            layer(x, angles, mask)
            assert modeling_llama.apply_rotary_pos_emb is rotate and not hasattr(angles[0], 'turn')
            with pytest.raises(RuntimeError):
                layer(x[..., :3], angles, mask)
        assert modeling_llama.apply_rotary_pos_emb is rotate and calls['neg'] == (2 if trained else 0)

    def test_a_function_that_may_get_queries_alone_is_left(self, monkeypatch):
        """As of Qwen4Exp, whose indexer has no keys to turn."""
        own = modeling_llama.apply_rotary_pos_emb

        def rotate(q, k=None, cos=None, sin=None, unsqueeze_dim=1):
            return own(q, q if k is None else k, cos, sin, unsqueeze_dim)

        monkeypatch.setattr(modeling_llama, 'apply_rotary_pos_emb', rotate)
        layer = LlamaAttention(ATTENTION, 0)
        fuse(layer)
        assert type(layer) is LlamaAttention

    @pytest.mark.parametrize('kind', [torch.float32, torch.bfloat16, torch.double], ids=str)
    def test_of_a_part_of_each_head_is_left_to_the_architecture(self, kind, gpu):
        q, k = (torch.randn(1, heads, 5, 12, dtype=kind).cuda() for heads in (4, 2))
        angle = torch.linspace(0, 9, 40).view(1, 5, 8).cuda()
        found = _rotated(modeling_bamba.apply_rotary_pos_emb, q, k, angle.cos(), angle.sin())
        wanted = modeling_bamba.apply_rotary_pos_emb(q, k, angle.cos(), angle.sin())
        assert all(map(torch.equal, found, wanted))

    @pytest.mark.parametrize(
        'kind, config',
        [
            (CohereAttention, CohereConfig(hidden_size=16, num_attention_heads=4)),  # neighbours are a pair
            (Gemma3nTextAttention, Gemma3nTextConfig(hidden_size=16, num_attention_heads=4)),  # another signature
        ]
    )
    def test_others_stay_as_they_are(self, kind, config):
        layer = kind(config, layer_idx=0)
        fuse(torch.nn.Sequential(layer))
        assert type(layer) is kind
