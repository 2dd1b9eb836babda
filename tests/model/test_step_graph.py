"""Steps of decoding whose operations are recorded, on a simulated GPU."""
import itertools

import pytest
import torch

from ding_common import ConfigError
from ding_grpo.act.critic import TokenCritic
from ding_grpo.model import PromptBatch
from ding_grpo.model.read import step_graph
from ding_grpo.model.read.step_graph import StepGraph
from ding_grpo.rollout import Sampling, generate
from benchmarks.architectures.configs import config_of
from tests.model.helper import ShortBeginnings, learned, make, uniform
from tests.model.test_packed_row import rows
from tests.policies import make_policy
from tests.act.test_kept_cache import LLAMA, WINDOW, play

CUDA = torch.device('cuda')
ALL = itertools.product(['uneven', 'even', 'beginnings'], ['llama', 'gemma2', 'gpt2', 'mistral'])
FEW = [('uneven', 'gpt2'), ('beginnings', 'llama')]
CASES = [pytest.param(*case, marks=[] if case in FEW else pytest.mark.algotest) for case in ALL]


class TestStepGraph:

    def test_calls(self, gpu):
        """The function runs once, is recorded once, and then what was recorded runs, on each call's token."""
        graph, total, calls = StepGraph(), torch.zeros(2, device=CUDA), []

        def step(token):
            calls.append(token)
            return token + total

        def call(*token):
            return graph(step, torch.tensor(token, device=CUDA)).tolist()

        assert call(1., 2.) == [1, 2]
        total += 10
        found = graph(step, torch.tensor([3., 4.], device=CUDA))
        assert found.tolist() == [13, 14] and call(5., 6.) == [15, 16] and len(calls) == 2
        assert found.tolist() == [13, 14]  # what a call returned stays
        total = torch.full((2, ), 20., device=CUDA)
        assert call(5., 6.) == [15, 16]
        graph.reset()
        assert call(5., 6.) == [25, 26] and len(calls) == 3

    def test_recordings_share_a_pool_of_memory(self, gpu):
        graph = StepGraph()
        for size in (4, 3, 2):
            graph.reset()
            for _ in range(3):
                token = torch.ones(size, device=CUDA)
                assert graph(torch.neg, token).tolist() == [-1] * size
        assert list(gpu.counts.recordings.values()) == [3] and gpu.counts.launches['graph'] == 6

    def test_what_cannot_be_recorded(self, gpu):
        graph, token = StepGraph(), torch.tensor([1, 0], device=CUDA)
        with pytest.raises(ConfigError, match='policy.model.cuda_graphs = True: the GPU cannot record .*capturing'):
            for _ in range(2):
                graph(lambda token: token[token > 0], token)

    @pytest.mark.parametrize(
        'first, last, raised, message',
        [
            # on a GPU the end of a failed recording raises another error: the cause is told
            (
                RuntimeError('nonzero waits'), RuntimeError('failed due to a previous error'), ConfigError,
                'cuda_graphs = True: .*nonzero waits'
            ),
            # ``grpo`` tells what to lower
            (torch.OutOfMemoryError('out of memory'), None, torch.OutOfMemoryError, 'out of memory'),
        ],
        ids=['cause', 'memory']
    )
    def test_a_failed_recording(self, first, last, raised, message, monkeypatch):

        def fail(function, previous):
            try:
                raise first
            finally:
                if last is not None:
                    raise last

        monkeypatch.setattr(step_graph, 'record', fail)
        graph, token = StepGraph(), torch.tensor([1, 0])
        graph(torch.neg, token)
        with pytest.raises(raised, match=message):
            graph(torch.neg, token)


class TestSampling:

    @pytest.mark.parametrize('case, name', CASES)
    def test_tokens_are_those_without_graphs(self, name, case, gpu):
        """40 tokens a row: the room for keys doubles twice, rows end and leave, windows close."""
        batch = PromptBatch.of(rows(case)[0], CUDA)
        found, wanted = (
            generate(
                ShortBeginnings(make(name, cuda_graphs=graphs).to(CUDA)), batch, 40, range(2), Sampling(1.5),
                uniform(len(batch.row), 40).to(CUDA)
            ) for graphs in (True, False)
        )
        assert torch.equal(found.action, wanted.action) and torch.allclose(found.logp, wanted.logp, atol=1e-4)
        assert gpu.counts.launches['graph'] >= 10 and len(gpu.counts.recordings) == 1

    @pytest.mark.parametrize('options', [dict(autocast='bfloat16', autocast_output=True), dict(dtype='bfloat16')])
    def test_arithmetic(self, options, gpu):
        model, batch = make('llama', cuda_graphs=True, **options).to(CUDA), PromptBatch.of(rows('even')[0], CUDA)
        rollout = generate(model, batch, 20, (), Sampling(), uniform(len(batch.row), 20).to(CUDA))
        with torch.no_grad():
            again = learned(model, batch, rollout.action, rollout.length)
        assert (again - rollout.logp).abs().max() < 0.1 and gpu.counts.launches['graph'] >= 15

    @pytest.mark.parametrize(
        'model', [LLAMA, pytest.param(WINDOW, marks=pytest.mark.algotest)], ids=['llama', 'window']
    )
    def test_turns_that_continue_a_kept_cache(self, model, gpu):
        wanted, found = (play('plain', groups=3, model=model, **graphs) for graphs in (dict(), dict(graphs=True)))
        assert gpu.counts.launches['graph'] > 0
        for one, other in zip(found, wanted):
            assert torch.equal(one['action'], other['action'])
            assert (one['logp_old'] - other['logp_old']).abs().max() <= 2e-6

    def test_recordings_share_a_pool_until_a_turn_ends(self, gpu):
        decoding, pools = make('llama', cuda_graphs=True).to(CUDA).start(PromptBatch.of(rows('even')[0], CUDA)), []
        for rest in (lambda: None, lambda: decoding.keep(torch.arange(3)), lambda: decoding.set_read(token)):
            rest()
            token = torch.ones(len(decoding._growing.read), device=CUDA).long()
            with torch.no_grad():
                for _ in range(2):
                    decoding.step(token)
            pools.append([*gpu.counts.recordings.values()])
        assert pools == [[1], [2], [2, 1]]

    def test_counts_of_the_caller_stay(self, gpu):
        batch, count = PromptBatch.of(rows('even')[0], CUDA), torch.ones(6, device=CUDA).long()
        decoding = make('llama', cuda_graphs=True).to(CUDA).start(batch)
        with torch.no_grad():
            decoding.step(count)
            decoding.set_read(count)
            decoding.step(count)
        assert count.tolist() == [1] * 6


class TestRefusals:

    @pytest.mark.parametrize('switch, given', [('cuda_graphs', {}), ('autocast_output', dict(autocast='bfloat16'))])
    def test_a_model_that_cannot_share_prompts_and_a_critic(self, think_answer, switch, given):
        main, create = think_answer
        main.policy.model = dict(type='causal_lm', config=config_of('openai-gpt'), **{switch: True}, **given)
        with pytest.raises(ConfigError, match=f'{switch} = True: OpenAIGPTLMHeadModel cannot share prompts'):
            make_policy(main, create)
        with pytest.raises(ConfigError, match=f'policy.learn.critic.model.{switch} = True: a critic does not sample'):
            TokenCritic(make('llama'), {'config': config_of('llama'), switch: True, **given})

    def test_a_cpu_uses_none(self):
        assert not make('llama', cuda_graphs=True).uses_cuda_graphs
        with pytest.raises(ConfigError, match='policy.model.cuda_graphs = 1: must be True or False'):
            make('llama', cuda_graphs=1)
