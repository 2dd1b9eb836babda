"""How a model is read is found by trying, in float64: the same in every type, for all weights, with adapters or not."""
import copy

import pytest
import torch

from ding_common import ConfigError
from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.model.read import attention as attention_module
from ding_grpo.model.read import whole
from ding_grpo.model.trial.architecture import RESULTS
from ding_grpo.model.trial.choose import TOLERANCE
from ding_grpo.model.trial.float64 import in_float64
from ding_grpo.model.trial.length_limit import length_limit
from ding_grpo.rl_utils import naive_method
from ding_grpo.rollout import Sampling, generate

from tests import gpu_kernel
from tests.cases import long
from tests.model.helper import CPU, PLAIN, WIDE, alone, gradient, modules_called, set_way, uniform
from tests.model.helper import make as made

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
GPT2 = dict(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=64)
CONFIGS = {
    'llama': WIDE,
    'qwen3_moe': dict(EXPERTS, head_dim=8),
    'cohere': dict(WIDE, logit_scale=0.3),  # not a number that float32 has
    'deepseek_v3': MLA,
    'deepseek_v2': dict(MLA, q_lora_rank=None, v_head_dim=8),
    # attention of another kind, or with an argument that sharing does not know
    'falcon': dict(PLAIN, new_decoder_architecture=False, multi_query=True, alibi=False),
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
    'bart': dict(
        vocab_size=40,
        d_model=32,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=48,
        max_position_embeddings=64
    ),
    # no cache that rows could go on from
    'openai-gpt': GPT2,
    'mamba': dict(vocab_size=40, hidden_size=32, state_size=8, num_hidden_layers=2),
}
SHARED = ['llama', 'qwen3_moe', 'cohere', 'deepseek_v3', 'deepseek_v2']
BY_LENGTH, REREAD = ['bart'], ['openai-gpt', 'mamba']


def way_of(name):
    ways = dict(shared=SHARED, by_length=BY_LENGTH, reread=REREAD)
    return next((way for way, names in ways.items() if name in names), 'padded')


def make(name, scale=4, **options):
    return made(name, CONFIGS[name], scale, **options)


def prompts():
    torch.manual_seed(1)
    rows = [torch.randint(3, 40, (n, )) for n in (9, 4, 6, 1)]
    return [rows[i] for i in (0, 0, 1, 2, 1, 3)]


@pytest.mark.unittest
class TestChoice:

    @pytest.mark.parametrize(
        'name, dtype', [
            *((name, 'float32') for name in CONFIGS),
            *((name, dtype) for name in ('llama', 'falcon', 'gpt_oss') for dtype in ('bfloat16', 'float16')),
            *(long(name, 'bfloat16') for name in CONFIGS if name not in ('llama', 'falcon', 'gpt_oss')),
        ]
    )
    def test_is_of_the_architecture_and_not_of_the_type(self, name, dtype):
        assert make(name, dtype=dtype).way == way_of(name)

    @pytest.mark.parametrize('scale', [0.1, 1, 30])
    @pytest.mark.parametrize('name', ['llama', 'falcon', 'gpt_oss'])
    def test_is_not_of_the_weights(self, name, scale):
        assert make(name, scale).way == way_of(name)

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

    def test_rows_that_see_what_follows_them_are_refused(self):
        torch.manual_seed(0)
        model = CausalLM(config=dict(model_type='xlnet', vocab_size=40, d_model=32, n_layer=2, n_head=4, d_inner=48))
        with pytest.raises(ConfigError,
                           match='XLNetLMHeadModel cannot be trained: results of rows read together differ'):
            model.way

    def test_an_architecture_that_refuses_gradients_in_evaluation_mode(self):
        config = dict(
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
        with pytest.raises(ConfigError, match='ReformerModelWithLMHead cannot be trained: AssertionError'):
            CausalLM(config=config).way

    def test_a_leak_between_rows_is_seen_however_small(self, monkeypatch):
        """Its size in bfloat16 is below rounding."""
        attend = whole.Whole.attend

        def leaks(self, layer, q, k, v, options):
            out = attend(self, layer, q, k, v, options)
            return out + 1e-5 * out.mean(1, keepdim=True)

        monkeypatch.setattr(whole.Whole, 'attend', leaks)
        assert make('llama', dtype='bfloat16').way == 'padded'

    def test_what_is_not_finite_is_not_tried(self):
        """And nothing is decided: with weights that are finite again the trial is made."""
        model = make('llama')
        weight = model.lm.get_input_embeddings().weight.data
        before = weight.clone()
        weight.fill_(float('nan'))
        assert model.way == 'padded'
        weight.copy_(before)
        assert model.way == 'shared'

    def test_the_weights_keep_their_type_and_their_values(self):
        model = make('qwen3_moe', dtype='bfloat16')
        before = copy.deepcopy(model.state_dict())
        assert model.shares_prompts and torch.get_default_dtype() is torch.float32
        after = model.state_dict()
        assert all(after[name].dtype is x.dtype and torch.equal(after[name], x) for name, x in before.items())

    def test_adapters_change_nothing(self, tmp_path):
        torch.manual_seed(0)
        config = dict(CONFIGS['llama'], model_type='llama', num_hidden_layers=30)
        CausalLM(config=config).save_pretrained(str(tmp_path))
        for scale in (0, 1):
            model = CausalLM(pretrained=str(tmp_path), lora=dict(r=4, target_modules='all-linear'))
            with torch.no_grad():
                for p in model.parameters():
                    if p.requires_grad:
                        p.normal_(std=scale)
            assert model.way == 'shared'


def failing(error):
    """A model that fails to read packed rows, and the hook that makes it fail."""
    model = make('llama')
    model.output_head()  # its measurement reads one row too

    def fail(module, args, output):
        if len(args[0]) == 1:
            raise error

    return model, model.lm.get_input_embeddings().register_forward_hook(fail)


@pytest.mark.unittest
class TestCheckpoint:

    def test_carries_the_choice(self):
        state = make('llama').way_state()
        assert state['way'] == 'shared'
        RESULTS.clear()
        model = make('llama')
        model.load_way_state(state)
        with modules_called() as called:
            assert model.shares_prompts and called == []
        batch = PromptBatch.of(prompts(), CPU)
        assert generate(model, batch, 3, (), Sampling(), uniform(6, 3)).logp.isfinite().all()

    @pytest.mark.parametrize('memory', [torch.OutOfMemoryError('CUDA out of memory'), MemoryError()], ids=repr)
    def test_a_trial_that_runs_out_of_memory_says_nothing(self, memory):
        """The slow way was chosen, and kept in the checkpoint for ever."""
        model, hook = failing(memory)
        with pytest.raises(ConfigError, match='out of memory while trying how the model can be read'):
            model.way
        hook.remove()
        assert model.way == 'shared'

    def test_an_unknown_exception_is_told_and_tried_again_at_resume(self, capsys):
        model, _ = failing(RuntimeError('a passing fault'))
        assert model.way == 'padded' and 'a passing fault' in capsys.readouterr().out
        resumed = make('llama')
        resumed.load_way_state(model.way_state())
        assert resumed.way == 'shared' and make('falcon').way_state()['way'] == 'padded'

    @pytest.mark.parametrize('change', [dict(transformers='5.0'), dict(longest=7), dict(attention='eager')], ids=str)
    def test_is_not_asked_when_something_else_has_changed(self, change):
        state = dict(make('llama').way_state(), way='padded')
        model = make('llama')
        model.load_way_state(dict(state, **change))
        assert model.way == 'shared'
        model.load_way_state(state)
        assert model.way == 'padded'


@pytest.mark.unittest
class TestLength:
    """A trial of a few tokens says nothing of masks and positions in long rows; these are looked at by themselves."""

    def test_a_mask_in_chunks(self):
        config = dict(
            WIDE,
            head_dim=8,
            num_local_experts=2,
            num_experts_per_tok=1,
            intermediate_size_mlp=48,
            attn_temperature_tuning=False,
            model_type='llama4_text',
            attention_chunk_size=12
        )
        for tokens, way in ((12, 'shared'), (13, 'padded')):
            torch.manual_seed(0)
            model = CausalLM(config=config)
            model.limit_length(tokens)
            assert model.way == way

    def test_a_window_longer_than_the_trial(self):
        torch.manual_seed(0)
        model = CausalLM(config=dict(WIDE, model_type='mistral', sliding_window=40))
        model.limit_length(100)
        assert model.way == 'shared'
        row = torch.randint(0, 40, (60, ))
        completion = torch.randint(0, 40, (2, 20))
        found = naive_method(model.completion_logits(PromptBatch.of([row, row], CPU), completion), completion)
        assert torch.allclose(found, alone(model, [row, row], completion), atol=2e-5)

    @pytest.mark.parametrize(
        'config', [
            dict(
                WIDE,
                model_type='phi3',
                pad_token_id=0,
                original_max_position_embeddings=12,
                max_position_embeddings=64,
                rope_parameters=dict(
                    rope_type='longrope',
                    rope_theta=1e4,
                    short_factor=[1., 1.1, 1.2, 1.3],
                    long_factor=[2., 3., 4., 5.]
                )
            ),
            dict(
                WIDE,
                model_type='llama',
                max_position_embeddings=12,
                rope_parameters=dict(rope_type='dynamic', factor=2., rope_theta=1e4)
            ),
        ],
        ids=lambda c: c['rope_parameters']['rope_type']
    )
    def test_factors_that_change_with_the_longest_row_of_a_batch(self, config):
        torch.manual_seed(0)
        model = CausalLM(config=config)
        reason, most = length_limit(model.lm.config)
        assert most == 12 and config['rope_parameters']['rope_type'] in reason
        model.limit_length(12)
        batch = PromptBatch.of([torch.arange(8)] * 2, CPU)
        completion = torch.arange(8).view(2, 4)
        assert model.completion_hidden(batch, completion).isfinite().all()
        for call in (
                lambda: model.limit_length(13),
                lambda: model.completion_hidden(batch, torch.ones(2, 5, dtype=torch.long)),
                lambda: model.completion_logits(batch, torch.ones(2, 5, dtype=torch.long)),
                lambda: generate(model, batch, 5, ()),
        ):
            with pytest.raises(ConfigError, match='beyond 12 tokens.*may have 13.*env.max_new_tokens'):
                call()

    def test_more_keys_than_are_selected(self):
        """A trial of few tokens selects all keys."""
        torch.manual_seed(0)
        model = CausalLM(config=dict(WIDE, model_type='doge', keep_window_size=20))
        assert model.way == 'padded'
        model.limit_length(20)
        with pytest.raises(ConfigError, match='keep_window_size = 20 .* beyond 20 tokens.*may have 21'):
            model.limit_length(21)


@pytest.mark.unittest
class TestOfOneArchitecture:
    """Its models share the trial, and the measurement of the output layer."""

    def tries(self, model):
        """Whether finding its way, or its output layer, runs the model."""
        with modules_called() as called:
            model.way, model.output_head()
        return model.lm in called

    def test_a_second_model_needs_none(self, tiny_config):
        first, second = CausalLM(config=dict(tiny_config)), CausalLM(config=dict(tiny_config))
        assert [self.tries(model) for model in (first, second)] == [True, False] and first.way == second.way == 'shared'
        ids = torch.arange(3, 12).unsqueeze(0)
        assert second.lm.config._attn_implementation == first.lm.config._attn_implementation  # that of shared prompts
        assert torch.isfinite(second.lm(ids).logits).all()
        others = [CausalLM(config=dict(tiny_config, num_hidden_layers=1)), CausalLM(config=dict(tiny_config))]
        others[1].limit_length(20)
        assert [self.tries(model) for model in others] == [True, True]

    def test_weights_without_a_trial_leave_none_behind(self, tiny_config):
        broken = CausalLM(config=dict(tiny_config))
        with torch.no_grad():
            next(broken.parameters()).fill_(float('nan'))
        assert broken.way == 'padded' and CausalLM(config=dict(tiny_config)).way == 'shared'

    def test_the_output_layer_is_measured_once(self, tiny_config):
        scaled = dict(tiny_config, model_type='granite', logits_scaling=4.0)
        found, measured = [], []
        for config, dtype in ((tiny_config, 'float32'), (tiny_config, 'float32'), (scaled, 'float32'),
                              (scaled, 'float32'), (tiny_config, 'bfloat16')):
            model = CausalLM(config=dict(config), dtype=dtype)
            with modules_called() as called:
                found.append(model.output_head().scale)
            measured.append(bool(called))
        assert found == [1, 1, 0.25, 0.25, 1] and measured == [True, False, True, False, True]

    def test_a_changed_model_is_no_other_of_its_architecture(self, tiny_config):
        """It neither takes the result of a plain one, nor leaves one behind."""
        plain, hooked, patched = (CausalLM(config=dict(tiny_config)) for _ in range(3))
        assert plain.output_head().scale == 1 and plain.way == 'shared'
        hooked.lm.lm_head.register_forward_hook(lambda module, args, output: output * 2)
        forward = patched.lm.forward
        patched.lm.forward = lambda *args, **kwargs: forward(*args, **kwargs)
        with pytest.raises(ConfigError, match='do not give its logits'):
            hooked.output_head()
        assert (hooked.way, patched.way) == ('padded', 'shared')
        third = CausalLM(config=dict(tiny_config))
        assert third.output_head().scale == 1 and third.way == 'shared' and not self.tries(third)


@pytest.mark.unittest
@pytest.mark.parametrize('attention', ['cpu', 'gpu', 'plain'])
@pytest.mark.parametrize('name', SHARED)
def test_all_attentions_give_the_same(name, attention, monkeypatch):
    model = make(name)
    called = gpu_kernel.use(monkeypatch) if attention == 'gpu' else []
    if attention == 'plain':
        for module in (attention_module, whole):
            monkeypatch.setattr(module, 'is_fast', lambda *args: False)
    rows = prompts()
    batch = PromptBatch.of(rows, CPU)
    found = generate(model, batch, 9, range(3), Sampling(), uniform(6, 9))
    action, counted = found.action.clamp(min=0), found.action >= 0
    wanted = alone(model, rows, action)
    expected = gradient(model, wanted[counted])
    logp = naive_method(model.completion_logits(batch, action, found.length), action)
    got = gradient(model, logp[counted])
    assert torch.allclose(found.logp[counted], wanted[counted], atol=2e-5)
    assert torch.allclose(logp[counted], wanted[counted], atol=2e-5)
    assert torch.allclose(got, expected, atol=5e-6 * expected.abs().max().item())
    # the size of deepseek's values differs from that of its queries, so that it needs plain attention
    kernels = {gpu_kernel.attention, gpu_kernel.attention_backward} if 'deepseek' not in name else set()
    assert set(called) == (kernels if attention == 'gpu' else set())


def test_attention_on_a_gpu_in_bfloat16(monkeypatch):
    """Layers and attention compute in bfloat16, forward and backward."""
    torch.manual_seed(0)
    rows, found = prompts(), []
    action = torch.randint(3, 40, (len(rows), 9))
    config = dict(WIDE, model_type='llama')
    model = CausalLM(config=config)
    half = CausalLM(config=config, autocast='bfloat16')
    half.load_state_dict(model.state_dict())
    for each, on_gpu in ((model, False), (half, True)):
        assert each.shares_prompts
        if on_gpu:
            called = gpu_kernel.use(monkeypatch)
        hidden = each.completion_hidden(PromptBatch.of(rows, CPU), action)
        found.append(
            torch.cat(
                [
                    hidden.flatten(),
                    *(g.flatten() for g in torch.autograd.grad(hidden.square().sum(), list(each.trunk.parameters())))
                ]
            ).detach()
        )
    assert {gpu_kernel.attention, gpu_kernel.attention_backward} == set(called)
    assert 0 < (found[1] - found[0]).norm() < 0.03 * found[0].norm()


def test_the_tolerance_is_far_from_both():
    """Of rounding in float64, and of the smallest leak that matters in float32."""
    assert 1e4 * torch.finfo(torch.double).eps < TOLERANCE < torch.finfo(torch.float32).eps
