"""What every architecture must give: one table of small random models."""
import pytest
import torch
from transformers import AutoModelForCausalLM

from ding_grpo.model import CausalLM
from ding_grpo.model.decoding import PromptBatch
from ding_grpo.rl_utils import linear_log_prob, naive_method
from ding_grpo.rollout import Sampling, generate

COMMON = dict(vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
CONFIGS = {
    'llama': dict(COMMON, num_key_value_heads=2),
    'qwen2': dict(COMMON, num_key_value_heads=2),
    'qwen3': dict(COMMON, num_key_value_heads=2, head_dim=8),
    'gemma': dict(COMMON, num_key_value_heads=1, head_dim=8),
    'gemma2': dict(COMMON, num_key_value_heads=2, head_dim=8, sliding_window=6),
    'mistral': dict(COMMON, num_key_value_heads=2, sliding_window=6),
    'gpt2': dict(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=64),
}
CPU = torch.device('cpu')


@pytest.fixture(params=list(CONFIGS))
def model(request):
    torch.manual_seed(0)
    model = CausalLM(config=dict(CONFIGS[request.param], model_type=request.param))
    with torch.no_grad():  # far enough from uniform that a wrong position shows
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(4)
    return model


@pytest.fixture
def prompts():
    torch.manual_seed(1)
    rows = [torch.randint(0, 40, (n, )) for n in (9, 4, 6)]
    return [rows[0], rows[0], rows[1], rows[2], rows[1]]


def learned(model, prompts, completion):
    """Log-probabilities as learning computes them."""
    batch = PromptBatch.of(prompts, CPU)
    head = model.output_head()._asdict()
    return linear_log_prob(model.completion_hidden(batch, completion), index=completion, **head)


def alone(model, prompts, completion):
    """Each row read whole, by itself, without a cache."""
    rows = []
    for prompt, tokens in zip(prompts, completion):
        logit = model.lm(torch.cat([prompt, tokens])[None], use_cache=False).logits[0, len(prompt) - 1:-1]
        rows.append(naive_method(logit[None], tokens[None])[0])
    return torch.stack(rows)


def gradient(model, logp):
    model.zero_grad()
    logp.sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.unittest
class TestArchitecture:

    @pytest.mark.parametrize('sampling', [Sampling(), Sampling(0.7), Sampling(0.9, 8, 0.9)], ids=str)
    def test_sampled_log_probabilities_are_the_learned_ones(self, model, prompts, sampling):
        batch = PromptBatch.of(prompts, CPU)
        uniform = torch.rand(5, 12, dtype=torch.double, generator=torch.Generator().manual_seed(2))
        rollout = generate(model, batch, 12, (3, ), sampling, uniform)
        weight = (rollout.action >= 0).float()
        with torch.no_grad():
            logit = model.completion_logits(batch, rollout.action.clamp(min=0))
            kept = rollout.kept
            if kept is not None:
                kept = kept.clone()
                kept[..., 0] = torch.where(weight == 0, 0, kept[..., 0])
            logit, index = sampling.reuse(logit, rollout.action.clamp(min=0), kept)
            again = naive_method(logit, index)
        assert torch.allclose(rollout.logp * weight, again * weight, atol=2e-4)

    def test_shared_prompts_are_read_as_if_alone(self, model, prompts):
        completion = torch.randint(0, 40, (5, 7), generator=torch.Generator().manual_seed(3))
        expected = alone(model, prompts, completion)
        got = learned(model, prompts, completion)
        assert torch.allclose(got, expected, atol=2e-4)
        a, b = gradient(model, learned(model, prompts, completion)), gradient(model, alone(model, prompts, completion))
        assert torch.allclose(a, b, atol=2e-3 * b.abs().max().item())

    def test_layers_computed_again_change_nothing(self, model, prompts):
        completion = torch.randint(0, 40, (5, 7), generator=torch.Generator().manual_seed(3))
        expected = learned(model, prompts, completion)
        wanted = gradient(model, expected)
        model._checkpoint_layers()
        calls = []
        for layer in model._layers:
            next(layer.children()).register_forward_pre_hook(lambda *args: calls.append(1))
        got = learned(model, prompts, completion)
        assert torch.allclose(got, expected, atol=2e-4)
        assert len(calls) == 2  # layers
        assert torch.allclose(gradient(model, got), wanted, atol=2e-3 * wanted.abs().max().item())
        assert len(calls) == 4  # and once more for the gradient
        assert not any(layer.training for layer in model.modules())

    def test_layers_computed_again_have_no_dropout_of_their_own(self, prompts):
        shape = dict(vocab_size=40, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4)
        model = CausalLM(config=dict(shape, model_type='opt', word_embed_proj_dim=32, dropout=0.5))
        model._checkpoint_layers()
        completion = torch.randint(0, 40, (5, 7), generator=torch.Generator().manual_seed(3))
        assert torch.equal(learned(model, prompts, completion), learned(model, prompts, completion))

    def test_save_and_load(self, model, prompts, tmp_path):
        completion = torch.randint(0, 40, (5, 7), generator=torch.Generator().manual_seed(3))
        model.save_pretrained(str(tmp_path))
        loaded = CausalLM(pretrained=str(tmp_path))
        assert torch.equal(learned(loaded, prompts, completion), learned(model, prompts, completion))
        plain = AutoModelForCausalLM.from_pretrained(str(tmp_path))
        ids = prompts[0][None]
        assert torch.equal(plain(ids).logits, model.lm(ids).logits)
