"""A sample of `make bench NAME=architectures`, and whether its verdict notices what is wrong."""
import pytest

from benchmarks.architectures.check import Line, learn, measure, page
from ding_grpo.model import CausalLM
from tests.cases import long

# One of each kind: windows in the attention's arguments and in the mask only, sinks, attention outside of transformers'
# interface, latent keys, two values a head, states beside keys, states alone, positions that the model counts itself.
WORK = [
    'llama', 'gemma2', 'phimoe', 'gpt_oss', 'falcon', 'deepseek_v3', 'diffllama', 'qwen3_5_text', 'falcon_h1', 'lfm2',
    'llama4_text'
]
EITHER = ['doge', 'phi3 (longrope rotary)', 'deepseek_v32', 'mamba', 'rwkv', 'bart', 'roberta']  # right, or refused
RUN = ['llama', 'falcon', 'deepseek_v3', 'falcon_h1']


@pytest.mark.unittest
class TestArchitectures:

    @pytest.mark.parametrize('dtype', ['float32', long('bfloat16'), long('float16')])
    @pytest.mark.parametrize('name', WORK)
    def test_log_probabilities_are_those_of_plain_transformers(self, name, dtype):
        result = measure(name, dtype, 4)
        assert (result.wrong, result.refused, result.impossible) == (None, None, None)
        assert result.sampled is not None

    @pytest.mark.parametrize('name', EITHER)
    def test_what_does_not_work_is_refused(self, name):
        assert measure(name, 'float32', 4).wrong is None

    @pytest.mark.parametrize('name', RUN)
    def test_sampler_and_learner_agree_in_a_run(self, name, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        run = learn(name, 'linear_log_prob')
        assert (run.wrong, run.refused) == (None, None)
        assert len(run.gaps) == 2 and None not in run.gaps


@pytest.mark.unittest
class TestVerdict:

    def test_learning_that_reads_another_prompt(self, monkeypatch):
        hidden = CausalLM.completion_states

        def shifted(self, prompts, *args):
            return hidden(self, prompts._replace(ids=prompts.ids.roll(1, 1)), *args)

        monkeypatch.setattr(CausalLM, 'completion_states', shifted)
        assert 'learned' in measure('llama', 'float32', 1).wrong
        assert 'learned' in measure('llama', 'bfloat16', 4).wrong

    def test_sampling_that_reads_another_prompt(self, monkeypatch):
        start = CausalLM.start

        def shifted(self, prompts, *args):
            return start(self, prompts._replace(ids=prompts.ids.roll(1, 1)), *args)

        monkeypatch.setattr(CausalLM, 'start', shifted)
        assert 'sampled' in measure('llama', 'float32', 1).wrong

    def test_an_exception_is_a_wrong_line(self, monkeypatch):

        def fails(self, *args):
            raise IndexError('out of range')

        monkeypatch.setattr(CausalLM, 'completion_states', fails)
        result = measure('llama', 'float32')
        line = Line('llama', {('float32', 1): result}, None, 0.0)
        assert line.wrong == ['float32 ×1: IndexError: out of range']
        assert '| llama | float32 ×1: IndexError: out of range |' in page([line])
