"""Models with dropout and batch norm sample, learn and evaluate as if they had none, and keep their statistics."""
import copy

import pytest
import torch
from torch import nn

from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.rollout import Sampling, generate
from dizoo_llm.envs import TokenEnv
from tests.model.helper import CPU, make, uniform
from tests.policies import make_policy, sample_groups

RATES = dict(
    gpt2=dict(embd_pdrop=0.5, attn_pdrop=0.5, resid_pdrop=0.5),
    opt=dict(dropout=0.5, attention_dropout=0.5),
    llama=dict(attention_dropout=0.5),
)
PROMPTS = [torch.arange(5), torch.arange(5), torch.arange(9) + 20]


def results(model):
    """What is sampled, decoded greedily, and learned."""
    batch = PromptBatch.of(PROMPTS, CPU)
    sampled, greedy = (generate(model, batch, 8, (), Sampling(), drawn) for drawn in (uniform(3, 8), None))
    hidden = model.completion_hidden(batch, sampled.action)
    grad = torch.autograd.grad(hidden.square().sum(), next(model.parameters()))[0]
    return sampled.action, sampled.logp, greedy.action, hidden.detach(), grad


@pytest.mark.parametrize('options', [dict(), dict(gradient_checkpointing=True)], ids=['plain', 'checkpointing'])
@pytest.mark.parametrize('name', RATES)
def test_dropout_changes_nothing(name, options):
    plain, model = make(name, 1, **options), make(name, 1, RATES[name], **options).train()
    model.load_state_dict(plain.state_dict())
    random = torch.get_rng_state()
    assert all(torch.equal(found, wanted) for found, wanted in zip(results(model), results(plain)))
    assert torch.equal(torch.get_rng_state(), random) and not any(module.training for module in model.modules())


class Normed(nn.Module):
    """A layer of a model, followed by batch norm over all tokens."""

    def __init__(self, layer, size=32):
        super().__init__()
        self.layer, self.norm = layer, nn.BatchNorm1d(size)
        self.norm.running_mean += torch.linspace(-1, 1, size)
        self.norm.running_var *= 2

    def forward(self, x):
        return self.norm(self.layer(x).flatten(0, 1)).view_as(x)


def normed(vocabulary):
    lm = make('llama', 1, dict(vocab_size=vocabulary)).lm
    lm.model.layers[0].mlp = Normed(lm.model.layers[0].mlp)
    return CausalLM.from_model(lm.train())


class TestBatchNorm:

    def test_a_row_does_not_depend_on_others(self):
        model = normed(40).train()
        assert model.shares_prompts
        before, completion = copy.deepcopy(model.state_dict()), torch.arange(12).view(3, 4)
        together = model.completion_logits(PromptBatch.of(PROMPTS, CPU), completion)
        for i, prompt in enumerate(PROMPTS):
            alone = model.completion_logits(PromptBatch.of([prompt], CPU), completion[i:i + 1])
            assert torch.allclose(together[i], alone[0], atol=1e-5)
        results(model)
        assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())

    def test_a_policy_learns_what_it_samples_and_evaluates_the_same_twice(self, think_answer):
        main, create = think_answer
        main.policy.learn.learning_rate = 1e-2
        model = normed(TokenEnv().token_spec.vocab_size)
        policy = make_policy(main, create, model=model)
        statistics = {name: x.clone() for name, x in model.named_buffers()}
        metrics = policy.learn_mode.forward(sample_groups(policy, [1, 2], reward=lambda group, row: row))
        assert metrics['sampler_gap_max'] < 1e-5
        assert all(torch.equal(x, statistics[name]) for name, x in model.named_buffers())
        obs = {i: TokenEnv().reset(options=dict(index=i))[0] for i in range(4)}
        found = [{i: out['action'].tolist() for i, out in policy.eval_mode.forward(obs).items()} for _ in range(2)]
        alone = {i: policy.eval_mode.forward({i: obs[i]})[i]['action'].tolist() for i in obs}
        assert found[0] == found[1] == alone
