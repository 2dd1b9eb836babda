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
from tests.cases import brief, long
from tests.model.helper import CPU, alone, gradient, make, set_way, uniform

alone_tried = pytest.mark.usefixtures('each_model_has_its_trial')
SHARED = ['llama', 'qwen3_moe', 'deepseek_v3', 'deepseek_v2 (values as long as keys)']
PADDED = [
    # attention of another kind, or with an argument that sharing does not know
    *('falcon', 'gpt_neo', 'bloom', 'gpt_neox_japanese', 'gpt_oss', 'doge', 'diffllama'),
    # hybrids
    *('lfm2', 'qwen3_5_text', 'qwen3_next', 'bamba', 'falcon_h1', 'olmo_hybrid'),
]
WAYS = {
    **dict.fromkeys(SHARED, 'shared'),
    **dict.fromkeys(PADDED, 'padded'),
    'bart': 'by_length',  # it counts positions itself
    'openai-gpt': 'reread',  # these have no cache that rows could go on from
    'mamba': 'reread',
}
# project/test_architecture_table.py has one of each other kind.
EACH_KIND = ['llama', 'qwen3_moe', SHARED[-1], 'gpt_oss', 'doge', 'bamba', 'bart', 'mamba']
FEW = [
    ('llama', dict(dtype='bfloat16')),
    ('llama', dict(scale=30)),
    ('falcon', dict(dtype='float16')),
    ('gpt_oss', dict(scale=0.1)),
    *(long('llama', option) for option in (dict(dtype='float16'), dict(scale=0.1))),
    long('falcon', dict(scale=30)),
    long('gpt_oss', dict(dtype='bfloat16')),
    ('cohere', dict(change=dict(logit_scale=0.3))),  # not a number that float32 has
]
KERNELS = [f'_scaled_dot_product_efficient_attention{end}' for end in ('', '_backward')]


def prompts():
    torch.manual_seed(1)
    rows = [torch.randint(3, 40, (n, )) for n in (9, 4, 6, 1)]
    return [rows[i] for i in (0, 0, 1, 2, 1, 3)]


class TestChoice:

    @pytest.mark.parametrize('name', brief(WAYS, EACH_KIND))
    def test_what_is_sampled_and_learned_is_what_transformers_gives(self, name, capsys):
        model, rows = make(name), prompts()
        batch = PromptBatch.of(rows, CPU)
        assert model.way == WAYS[name]
        with in_float64():  # float32 differs by more than 2e-5 for some architectures on some processors
            found = generate(model, batch, 14, (), Sampling(), uniform(6, 14))
            wanted = alone(model, rows, found.action)
            again = naive_method(model.completion_logits(batch, found.action), found.action)
        assert torch.allclose(found.logp, wanted, atol=2e-6) and torch.allclose(again, wanted, atol=2e-6)
        assert capsys.readouterr().out.count(type(model.lm).__name__) == (WAYS[name] != 'shared')  # said once

    @alone_tried
    @pytest.mark.parametrize('name, options', [*FEW, *(long(name, dict(dtype='bfloat16')) for name in WAYS)], ids=str)
    def test_is_of_the_architecture_and_not_of_the_type_or_the_weights(self, name, options):
        assert make(name, **options).way == WAYS.get(name, 'shared')

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
        'name, message',
        [
            # rows see what follows them
            ('xlnet', 'XLNetLMHeadModel cannot be trained: results of rows read together differ'),
            # it refuses gradients in evaluation mode
            ('reformer', 'ReformerModelWithLMHead cannot be trained: AssertionError'),
        ]
    )
    def test_refused(self, name, message):
        with pytest.raises(ConfigError, match=message):
            make(name, 1).way

    @alone_tried
    def test_a_leak_between_rows_is_seen_however_small(self, monkeypatch):
        """Its size in bfloat16 is below rounding."""
        attend = whole.Whole.attend

        def leaks(self, layer, q, k, v, options):
            out = attend(self, layer, q, k, v, options)
            return out + 1e-5 * out.mean(1, keepdim=True)

        monkeypatch.setattr(whole.Whole, 'attend', leaks)
        assert make('llama', dtype='bfloat16').way == 'padded'

    @alone_tried
    def test_what_is_not_finite_is_not_tried(self):
        """And nothing is decided: with weights that are finite again, and for other models, the trial is made."""
        model = make('llama')
        weight = model.lm.get_input_embeddings().weight.data
        before = weight.clone()
        weight.fill_(float('nan'))
        assert model.way == 'padded' and make('llama').way == 'shared'
        weight.copy_(before)
        assert model.way == 'shared'

    @alone_tried
    def test_the_weights_keep_their_type_and_their_values(self):
        model = make('qwen3_moe', dtype='bfloat16')
        before = copy.deepcopy(model.state_dict())
        assert model.shares_prompts and torch.get_default_dtype() is torch.float32
        after = model.state_dict()
        assert all(after[name].dtype is x.dtype and torch.equal(after[name], x) for name, x in before.items())

    def test_adapters_change_nothing(self, tmp_path):
        make('llama', 1, dict(num_hidden_layers=12)).save_pretrained(str(tmp_path))
        model = CausalLM(pretrained=str(tmp_path), lora=dict(r=4, target_modules='all-linear'))
        with torch.no_grad():
            for p in model.parameters():
                if p.requires_grad:
                    p.normal_()
        assert model.way == 'shared'


@pytest.mark.parametrize(
    'name, device',
    [('deepseek_v3', 'cpu'), *brief([(name, 'cuda') for name in SHARED], [('llama', 'cuda'), ('deepseek_v3', 'cuda')])]
)
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
    # the size of its values differs from that of its queries, so that it needs plain attention
    fast = device == 'cuda' and name != 'deepseek_v3'
    assert [gpu.counts.launches[name] > 0 for name in KERNELS] == [fast] * 2


def test_attention_on_a_gpu_in_bfloat16(gpu):
    """Layers and attention compute in bfloat16, forward and backward."""
    rows, found = prompts(), []
    action = torch.randint(3, 40, (len(rows), 9))
    for autocast in (None, 'bfloat16'):
        model = make('llama', 1, autocast=autocast).to('cuda')
        assert model.shares_prompts
        gpu.counts.reset()
        hidden = model.completion_hidden(PromptBatch.of(rows, torch.device('cuda')), action.to('cuda'))
        gradients = torch.autograd.grad(hidden.square().sum(), list(model.trunk.parameters()))
        found.append(torch.cat([x.flatten() for x in (hidden, *gradients)]).detach())
        assert all(gpu.counts.launches[name] > 0 for name in KERNELS)
    assert 0 < (found[1] - found[0]).norm() < 0.03 * found[0].norm()
