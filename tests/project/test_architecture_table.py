"""A sample of `make architectures`, and whether its verdict notices what is wrong."""
import importlib
import os

import pytest
from click.testing import CliRunner

from ding_grpo.model import CausalLM

from tests.cases import long

BENCHMARKS = os.path.join(os.path.dirname(__file__), '..', '..', 'benchmarks')
# One of each kind: windows in the attention's arguments and in the mask only, sinks, attention outside of transformers'
# interface, latent keys, two values a head, states beside keys, states alone, positions that the model counts itself.
WORK = [
    'llama', 'gemma2', 'phimoe', 'gpt_oss', 'falcon', 'deepseek_v3', 'diffllama', 'qwen3_5_text', 'falcon_h1', 'lfm2',
    'llama4_text'
]
EITHER = ['doge', 'phi3 (longrope rotary)', 'deepseek_v32', 'mamba', 'rwkv', 'bart', 'roberta']  # right, or refused
RUN = ['llama', 'falcon', 'deepseek_v3', 'falcon_h1']


@pytest.fixture(scope='module')
def program():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module('architectures')


@pytest.fixture(scope='module')
def measure(program):
    return program.measure


@pytest.mark.unittest
class TestArchitectures:

    @pytest.mark.parametrize('dtype', ['float32', long('bfloat16'), long('float16')])
    @pytest.mark.parametrize('name', WORK)
    def test_log_probabilities_are_those_of_plain_transformers(self, measure, name, dtype):
        result = measure(name, dtype, 4)
        assert (result.wrong, result.refused, result.impossible) == (None, None, None)
        assert result.sampled is not None

    @pytest.mark.parametrize('name', EITHER)
    def test_what_does_not_work_is_refused(self, measure, name):
        assert measure(name, 'float32', 4).wrong is None

    @pytest.mark.parametrize('name', RUN)
    def test_sampler_and_learner_agree_in_a_run(self, program, name, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        run = program.learn(name, 'linear_log_prob')
        assert (run.wrong, run.refused) == (None, None)
        assert len(run.gaps) == 2 and None not in run.gaps

    def test_at_least_80_architectures(self, program):
        assert len({program.model_type(name) for name in program.NAMES}) >= 80


@pytest.mark.unittest
class TestVerdict:

    def test_learning_that_reads_another_prompt(self, measure, monkeypatch):
        hidden = CausalLM.completion_states

        def shifted(self, prompts, *args):
            return hidden(self, prompts._replace(ids=prompts.ids.roll(1, 1)), *args)

        monkeypatch.setattr(CausalLM, 'completion_states', shifted)
        assert 'learned' in measure('llama', 'float32', 1).wrong
        assert 'learned' in measure('llama', 'bfloat16', 4).wrong

    def test_sampling_that_reads_another_prompt(self, measure, monkeypatch):
        start = CausalLM.start

        def shifted(self, prompts, *args):
            return start(self, prompts._replace(ids=prompts.ids.roll(1, 1)), *args)

        monkeypatch.setattr(CausalLM, 'start', shifted)
        assert 'sampled' in measure('llama', 'float32', 1).wrong

    @pytest.mark.parametrize('name, padded', [('llama', True), ('bart', False), ('rwkv', False)])
    def test_what_cannot_be_read_padded_is_not_compared_with_it(self, measure, name, padded):
        result = measure(name, 'float32', 4)
        assert result.padded == padded
        assert result.plain.within(result.allowed)  # by the rounding of this processor

    def test_a_difference_of_sampler_and_learner(self, program):
        run = program.Run
        assert run((1e-7, 2e-5)).wrong and run((1e-7, float('nan'))).wrong
        assert not run((1e-7, 1e-6)).wrong and not run((None, None)).wrong

    def test_an_exception_is_a_wrong_line(self, program, monkeypatch):

        def fails(self, *args):
            raise IndexError('out of range')

        monkeypatch.setattr(CausalLM, 'completion_states', fails)
        result = program.measure('llama', 'float32')
        line = program.Line('llama', {('float32', 1): result}, None, 0.0)
        assert line.wrong == ['float32 ×1: IndexError: out of range']
        assert '| llama | float32 ×1: IndexError: out of range |' in program.page([line])

    @pytest.mark.algotest
    def test_a_process_that_dies_is_a_wrong_line(self, program):
        line, = program.examine_all([Killer()], jobs=1)
        assert len(line.wrong) == 1 and line.wrong[0].startswith('run: the process ended with 3')

    def test_a_refusal_has_its_words_on_the_page(self, program, measure):
        result = measure('llama (dynamic rotary)', 'float32')
        line = program.Line('llama (dynamic rotary)', {('float32', 1): result}, None, 0.0)
        assert line.reading == 'refused' and not line.wrong
        assert result.refused in program.page([line])

    def test_a_part_is_not_written(self, program):
        found = CliRunner().invoke(program.main, ['--only', 'llama', '--write'])
        assert found.exit_code == 2 and 'all architectures' in found.output
        found = CliRunner().invoke(program.main, ['--only', 'lama'])
        assert found.exit_code == 2 and '--only lama' in found.output


class Killer:
    """An order that ends the process that unpacks it."""
    name = 'killer'

    def __reduce__(self):
        return os._exit, (3, )
