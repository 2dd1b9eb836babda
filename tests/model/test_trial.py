"""How a model is read is found by trying, in float64: the same in every type, for all weights, with adapters or not."""
import copy

import pytest
import torch

from ding_common import ConfigError
from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.model.read import whole
from ding_grpo.model.trial.float64 import in_float64
from ding_grpo.rl_utils import naive_method
from ding_grpo.rollout import Sampling, generate
from tests.cases import long
from tests.model.helper import CPU, GPT2, PLAIN, WIDE, alone, gradient, of, set_way, uniform
from tests.model.helper import make as made

pytestmark = pytest.mark.unittest
EXPERTS = dict(WIDE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
MAMBA = dict(mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8, mamba_n_groups=1)
LINEAR = dict(
    head_dim=8,
    layer_types=['linear_attention', 'full_attention'],
    linear_num_value_heads=4,
    linear_num_key_heads=2,
    linear_key_head_dim=8,
    linear_value_head_dim=8
)
MLA = dict(
    PLAIN,
    intermediate_size=48,
    num_key_value_heads=4,
    kv_lora_rank=16,
    q_lora_rank=16,
    qk_rope_head_dim=8,
    qk_nope_head_dim=16,
    v_head_dim=16,
    n_routed_experts=4,
    n_shared_experts=1,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    first_k_dense_replace=1,
    n_group=1,
    topk_group=1
)
BART = dict(
    vocab_size=40,
    d_model=32,
    decoder_layers=2,
    decoder_attention_heads=4,
    decoder_ffn_dim=48,
    max_position_embeddings=64
)
CONFIGS = {
    'llama': WIDE,
    'qwen3_moe': dict(EXPERTS, head_dim=8),
    'cohere': dict(WIDE, logit_scale=0.3),  # not a number that float32 has
    'deepseek_v3': MLA,
    'deepseek_v2': dict(MLA, q_lora_rank=None, v_head_dim=8),
    # attention of another kind, or with an argument that sharing does not know
    'falcon': dict(PLAIN, new_decoder_architecture=False, multi_query=True, alibi=False),
    'gpt_neo': dict(vocab_size=40, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[['global'], 2]]),
    'bloom': dict(vocab_size=40, hidden_size=32, n_layer=2, n_head=4),
    'gpt_neox_japanese': dict(PLAIN, intermediate_multiple_size=2),
    'gpt_oss': dict(WIDE, head_dim=8, sliding_window=6, num_local_experts=4, num_experts_per_tok=2),
    'doge': WIDE,
    'diffllama': WIDE,
    # hybrids
    'lfm2': dict(WIDE, layer_types=['conv', 'full_attention']),
    'qwen3_5_text': dict(WIDE, **LINEAR),
    'qwen3_next': dict(EXPERTS, shared_expert_intermediate_size=16, **LINEAR),
    'bamba': dict(WIDE, attn_layer_indices=[1], mamba_chunk_size=8, **MAMBA),
    'falcon_h1': dict(WIDE, mamba_d_ssm=64, mamba_chunk_size=8, **MAMBA),
    'olmo_hybrid': dict(WIDE, pad_token_id=0),
    # positions are counted by the model itself
    'bart': BART,
    # no cache that rows could go on from
    'openai-gpt': GPT2,
    'mamba': dict(vocab_size=40, hidden_size=32, state_size=8, num_hidden_layers=2),
}
SHARED = ['llama', 'qwen3_moe', 'cohere', 'deepseek_v3', 'deepseek_v2']
WAYS = dict.fromkeys(SHARED, 'shared') | {'bart': 'by_length', 'openai-gpt': 'reread', 'mamba': 'reread'}
FEW = ('llama', 'falcon', 'gpt_oss')
REFORMER = dict(
    model_type='reformer',
    vocab_size=40,
    hidden_size=32,
    attention_head_size=8,
    num_attention_heads=4,
    feed_forward_size=48,
    attn_layers=['local'],
    axial_pos_embds=False,
    is_decoder=True,
    max_position_embeddings=64
)
XLNET = dict(model_type='xlnet', vocab_size=40, d_model=32, n_layer=2, n_head=4, d_inner=48)


def way_of(name):
    return WAYS.get(name, 'padded')


def make(name, scale=4, **options):
    return made(name, CONFIGS[name], scale, **options)


KERNELS = [f'_scaled_dot_product_efficient_attention{end}' for end in ('', '_backward')]


def prompts():
    torch.manual_seed(1)
    rows = [torch.randint(3, 40, (n, )) for n in (9, 4, 6, 1)]
    return [rows[i] for i in (0, 0, 1, 2, 1, 3)]


class TestChoice:

    @pytest.mark.parametrize(
        'name, options', [
            *((name, dict()) for name in CONFIGS),
            *((name, dict(dtype=dtype)) for name in FEW for dtype in ('bfloat16', 'float16')),
            *(long(name, dict(dtype='bfloat16')) for name in CONFIGS if name not in FEW),
            *((name, dict(scale=scale)) for name in FEW for scale in (0.1, 1, 30)),
        ],
        ids=str
    )
    def test_is_of_the_architecture_and_not_of_the_type_or_the_weights(self, name, options):
        assert make(name, **options).way == way_of(name)

    @pytest.mark.parametrize('name', list(CONFIGS))
    def test_what_is_sampled_and_learned_is_what_transformers_gives(self, name, capsys):
        model, rows = make(name), prompts()
        batch, _ = PromptBatch.of(rows, CPU), model.way
        with in_float64():  # float32 differs by more than 2e-5 for some architectures on some processors
            found = generate(model, batch, 14, (), Sampling(), uniform(6, 14))
            wanted = alone(model, rows, found.action)
            again = naive_method(model.completion_logits(batch, found.action), found.action)
        assert torch.allclose(found.logp, wanted, atol=2e-6) and torch.allclose(again, wanted, atol=2e-6)
        assert capsys.readouterr().out.count(type(model.lm).__name__) == (way_of(name) != 'shared')  # said once

    @pytest.mark.parametrize('name', ['bamba', 'qwen3_5_text', 'bart'])
    def test_prompts_of_one_length(self, name):
        """Bamba counts positions wrongly where it is given none, also when nothing is padded."""
        model, rows = make(name), [torch.arange(3, 12)] * 2 + [torch.arange(13, 22)] * 2
        with torch.no_grad():
            found = generate(model, PromptBatch.of(rows, CPU), 6, (), Sampling(), uniform(4, 6))
            assert torch.allclose(found.logp, alone(model, rows, found.action), atol=2e-5)

    @pytest.mark.parametrize('way', ['padded', 'by_length', 'reread'])
    def test_slower_ways_give_the_same_rows(self, way):
        model, batch = make('llama'), PromptBatch.of(prompts(), CPU)
        wanted = generate(model, batch, 20, range(4), Sampling(), uniform(6, 20))
        assert len(set(wanted.length.tolist())) > 2  # rows end and leave
        set_way(model, way)
        found = generate(model, batch, 20, range(4), Sampling(), uniform(6, 20))
        assert torch.equal(found.action, wanted.action) and torch.allclose(found.logp, wanted.logp, atol=1e-5)
        a, b = (model.completion_hidden(batch, wanted.action.clamp(min=0), n) for n in (None, wanted.length))
        counted = torch.arange(a.shape[1]) < wanted.length.unsqueeze(1)
        assert torch.allclose(a[counted], b[counted], atol=1e-5)  # rows of similar length are read together
        set_way(model, 'shared')
        assert torch.allclose(a, model.completion_hidden(batch, wanted.action.clamp(min=0)), atol=1e-5)

    @pytest.mark.parametrize(
        'config, message',
        [
            # rows see what follows them
            (XLNET, 'XLNetLMHeadModel cannot be trained: results of rows read together differ'),
            # it refuses gradients in evaluation mode
            (REFORMER, 'ReformerModelWithLMHead cannot be trained: AssertionError'),
        ],
        ids=['xlnet', 'reformer']
    )
    def test_refused(self, config, message):
        with pytest.raises(ConfigError, match=message):
            of(config).way

    def test_a_leak_between_rows_is_seen_however_small(self, monkeypatch):
        """Its size in bfloat16 is below rounding."""
        attend = whole.Whole.attend

        def leaks(self, layer, q, k, v, options):
            out = attend(self, layer, q, k, v, options)
            return out + 1e-5 * out.mean(1, keepdim=True)

        monkeypatch.setattr(whole.Whole, 'attend', leaks)
        assert make('llama', dtype='bfloat16').way == 'padded'

    def test_what_is_not_finite_is_not_tried(self):
        """And nothing is decided: with weights that are finite again, and for other models, the trial is made."""
        model = make('llama')
        weight = model.lm.get_input_embeddings().weight.data
        before = weight.clone()
        weight.fill_(float('nan'))
        assert model.way == 'padded' and make('llama').way == 'shared'
        weight.copy_(before)
        assert model.way == 'shared'

    def test_the_weights_keep_their_type_and_their_values(self):
        model = make('qwen3_moe', dtype='bfloat16')
        before = copy.deepcopy(model.state_dict())
        assert model.shares_prompts and torch.get_default_dtype() is torch.float32
        after = model.state_dict()
        assert all(after[name].dtype is x.dtype and torch.equal(after[name], x) for name, x in before.items())

    @pytest.mark.parametrize('scale', [0, 1])
    def test_adapters_change_nothing(self, scale, tmp_path):
        of(dict(CONFIGS['llama'], model_type='llama', num_hidden_layers=30)).save_pretrained(str(tmp_path))
        model = CausalLM(pretrained=str(tmp_path), lora=dict(r=4, target_modules='all-linear'))
        with torch.no_grad():
            for p in model.parameters():
                if p.requires_grad:
                    p.normal_(std=scale)
        assert model.way == 'shared'


@pytest.mark.parametrize('device', ['cpu', 'cuda'])
@pytest.mark.parametrize('name', SHARED)
def test_attention_gives_what_transformers_gives(name, device, gpu):
    model, rows = make(name).to(device), [row.to(device) for row in prompts()]
    batch = PromptBatch.of(rows, torch.device(device))
    gpu.counts.reset()
    found = generate(model, batch, 9, range(3), Sampling(), uniform(6, 9).to(device))
    action, counted = found.action.clamp(min=0), found.action >= 0
    wanted = alone(model, rows, action)
    expected = gradient(model, wanted[counted])
    logp = naive_method(model.completion_logits(batch, action, found.length), action)
    got = gradient(model, logp[counted])
    assert torch.allclose(found.logp[counted], wanted[counted], atol=2e-5)
    assert torch.allclose(logp[counted], wanted[counted], atol=2e-5)
    assert torch.allclose(got, expected, atol=5e-6 * expected.abs().max().item())
    # the size of deepseek's values differs from that of its queries, so that it needs plain attention
    fast = device == 'cuda' and 'deepseek' not in name
    assert [gpu.counts.launches[name] > 0 for name in KERNELS] == [fast] * 2


def test_attention_on_a_gpu_in_bfloat16(gpu):
    """Layers and attention compute in bfloat16, forward and backward."""
    config, rows, found = dict(WIDE, model_type='llama'), prompts(), []
    action = torch.randint(3, 40, (len(rows), 9))
    for autocast in (None, 'bfloat16'):
        model = of(config, autocast=autocast).to('cuda')
        assert model.shares_prompts
        gpu.counts.reset()
        hidden = model.completion_hidden(PromptBatch.of(rows, torch.device('cuda')), action.to('cuda'))
        gradients = torch.autograd.grad(hidden.square().sum(), list(model.trunk.parameters()))
        found.append(torch.cat([x.flatten() for x in (hidden, *gradients)]).detach())
        assert all(gpu.counts.launches[name] > 0 for name in KERNELS)
    assert 0 < (found[1] - found[0]).norm() < 0.03 * found[0].norm()
