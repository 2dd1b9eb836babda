"""Steps of decoding whose operations are recorded, with a recorder for CPUs in place of a GPU's."""
import pytest
import torch

from ding_common import ConfigError
from ding_grpo.act.critic import TokenCritic
from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.model.read import step_graph
from ding_grpo.model.read.step_graph import StepGraph
from ding_grpo.rl_utils import linear_log_prob
from ding_grpo.rollout import Sampling, generate

from tests import gpu_graph
from tests.policies import make_policy
from tests.act.test_kept_cache import LLAMA, WINDOW, play
from tests.model.helper import CPU, ShortBeginnings, make, uniform
from tests.model.test_packed_row import rows

RECORDED = ['llama', 'gemma2', 'gpt2', 'mistral']


@pytest.mark.unittest
class TestStepGraph:

    def test_calls(self, monkeypatch):
        """The function runs once, is recorded once, and then what was recorded runs, on each call's token."""
        gpu_graph.use(monkeypatch)
        graph, total, calls = StepGraph(), torch.zeros(2), []

        def step(token):
            calls.append(token)
            return token + total

        def call(*token):
            return graph(step, torch.tensor(token)).tolist()

        assert call(1., 2.) == [1, 2]
        total += 10
        found = graph(step, torch.tensor([3., 4.]))
        assert found.tolist() == [13, 14] and call(5., 6.) == [15, 16] and len(calls) == 2
        assert found.tolist() == [13, 14]  # what a call returned stays
        total = torch.full((2, ), 20.)
        assert call(5., 6.) == [15, 16]
        graph.reset()
        assert call(5., 6.) == [25, 26] and len(calls) == 3

    def test_what_cannot_be_recorded(self, monkeypatch):
        gpu_graph.use(monkeypatch)
        graph, token = StepGraph(), torch.tensor([1, 0])

        def step(token):
            return token[token > 0]

        graph(step, token)
        with pytest.raises(ConfigError, match='policy.model.cuda_graphs = True: the GPU cannot record .*capturing'):
            graph(step, token)

    def test_the_cause_is_told(self, monkeypatch):
        """On a GPU the end of a failed recording raises another error."""

        def fail(function):
            try:
                raise RuntimeError('nonzero waits')
            finally:
                raise RuntimeError('failed due to a previous error')

        monkeypatch.setattr(step_graph, 'record', fail)
        graph, token = StepGraph(), torch.tensor([1, 0])
        graph(torch.neg, token)
        with pytest.raises(ConfigError, match='cuda_graphs = True: .*nonzero waits'):
            graph(torch.neg, token)

    def test_a_recording_without_memory(self, monkeypatch):
        """``grpo`` tells what to lower."""

        def fail(function):
            raise torch.OutOfMemoryError('out of memory')

        monkeypatch.setattr(step_graph, 'record', fail)
        graph, token = StepGraph(), torch.tensor([1, 0])
        graph(torch.neg, token)
        with pytest.raises(torch.OutOfMemoryError):
            graph(torch.neg, token)


@pytest.mark.unittest
class TestSampling:

    @pytest.mark.parametrize('case', ['uneven', 'even', 'beginnings'])
    @pytest.mark.parametrize('name', RECORDED)
    def test_tokens_are_those_without_graphs(self, name, case, monkeypatch):
        """40 tokens a row: the room for keys doubles twice, rows end and leave, windows close."""
        called, plain, model = gpu_graph.use(monkeypatch), make(name), make(name, cuda_graphs=True)
        batch = PromptBatch.of(rows(case)[0], CPU)
        drawn = uniform(len(batch.row), 40)
        found, wanted = (
            generate(ShortBeginnings(each), batch, 40, range(2), Sampling(1.5), drawn) for each in (model, plain)
        )
        assert torch.equal(found.action, wanted.action) and torch.allclose(found.logp, wanted.logp, atol=1e-4)
        assert 'record' in called and called.count('replay') >= 10

    @pytest.mark.parametrize(
        'options', [dict(autocast='bfloat16'),
                    dict(autocast='bfloat16', autocast_output=True),
                    dict(dtype='bfloat16')],
        ids=str
    )
    def test_arithmetic(self, options, monkeypatch):
        called, model = gpu_graph.use(monkeypatch), make('llama', cuda_graphs=True, **options)
        batch = PromptBatch.of(rows('even')[0], CPU)
        rollout = generate(model, batch, 20, (), Sampling(), uniform(len(batch.row), 20))
        with torch.no_grad():
            hidden = model.completion_hidden(batch, rollout.action, rollout.length)
        learned = linear_log_prob(hidden, index=rollout.action, **model.output_head()._asdict())
        assert (learned - rollout.logp).abs().max() < 0.1 and called.count('replay') >= 15

    @pytest.mark.parametrize('model', [LLAMA, WINDOW], ids=['llama', 'window'])
    def test_turns_that_continue_a_kept_cache(self, model, monkeypatch):
        wanted = play('plain', groups=3, model=model)
        called = gpu_graph.use(monkeypatch)
        found = play('plain', groups=3, model=model, graphs=True)
        assert 'replay' in called
        for one, other in zip(found, wanted):
            assert torch.equal(one['action'], other['action'])
            assert (one['logp_old'] - other['logp_old']).abs().max() <= 2e-6

    def test_counts_of_the_caller_stay(self, monkeypatch):
        gpu_graph.use(monkeypatch)
        count, decoding = torch.ones(6).long(), make(
            'llama', cuda_graphs=True
        ).start(PromptBatch.of(rows('even')[0], CPU))
        with torch.no_grad():
            decoding.step(count)
            decoding.set_read(count)
            decoding.step(count)
        assert count.tolist() == [1] * 6

    def test_an_architecture_that_waits_for_the_gpu(self, monkeypatch):
        """Tokens are sorted by their expert, and the number of each expert's tokens is not known before."""
        gpu_graph.use(monkeypatch)
        experts = dict(LLAMA, vocab_size=40, num_local_experts=4, num_experts_per_tok=2, num_key_value_heads=2)
        model = CausalLM(config=dict(experts, model_type='mixtral'), cuda_graphs=True)
        model.lm.set_experts_implementation('eager')
        batch = PromptBatch.of(rows('even')[0], CPU)
        with pytest.raises(ConfigError, match='policy.model.cuda_graphs = True: the GPU cannot record'):
            generate(model, batch, 20, (), Sampling(), torch.rand(len(batch.row), 20, dtype=torch.double))


@pytest.mark.unittest
class TestRefusals:

    def test_a_model_that_cannot_share_prompts(self, think_answer):
        main, create = think_answer
        config = dict(model_type='openai-gpt', vocab_size=32, n_positions=64, n_embd=64, n_layer=2, n_head=4)
        main.policy.model = dict(type='causal_lm', config=config, cuda_graphs=True)
        with pytest.raises(ConfigError, match='cuda_graphs = True: OpenAIGPTLMHeadModel cannot share prompts'):
            make_policy(main, create)

    def test_a_critic(self):
        with pytest.raises(ConfigError, match='policy.learn.critic.cuda_graphs = True: a critic does not sample'):
            TokenCritic(CausalLM(config=LLAMA), dict(config=LLAMA, cuda_graphs=True))

    def test_a_cpu_uses_none(self):
        assert not CausalLM(config=LLAMA, cuda_graphs=True).uses_cuda_graphs
        with pytest.raises(ConfigError, match='policy.model.cuda_graphs = 1: must be True or False'):
            CausalLM(config=LLAMA, cuda_graphs=1)
