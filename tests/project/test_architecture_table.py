"""A sample of `make bench NAME=architectures`."""
import pytest

from benchmarks.architectures.check import learn, measure
from tests.cases import brief, long

# One of each kind: windows in the attention's arguments and in the mask only, sinks, attention outside of transformers'
# interface, latent keys, two values a head, states beside keys, states alone, positions that the model counts itself.
WORK = [
    'llama', 'gemma2', 'phimoe', 'gpt_oss', 'falcon', 'deepseek_v3', 'diffllama', 'qwen3_5_text', 'falcon_h1', 'lfm2',
    'llama4_text', 'falcon_mamba'
]
# tests/model has the other two
FEW = [name for name in WORK if name not in ('llama', 'gemma2')]
EITHER = ['doge', 'phi3 (longrope rotary)', 'deepseek_v32', 'mamba', 'rwkv', 'bart', 'roberta']  # right, or refused
RUN = ['llama', 'falcon', 'deepseek_v3', 'falcon_h1']


@pytest.mark.parametrize('dtype', ['float32', long('bfloat16'), long('float16')])
@pytest.mark.parametrize('name', brief(WORK, FEW))
def test_log_probabilities_are_those_of_plain_transformers(name, dtype):
    result = measure(name, dtype, 4)
    assert (result.wrong, result.refused, result.impossible) == (None, None, None)
    assert result.sampled is not None


@pytest.mark.parametrize('name', brief(EITHER, ('doge', 'phi3 (longrope rotary)', 'rwkv', 'bart')))
def test_what_does_not_work_is_refused(name):
    assert measure(name, 'float32', 4).wrong is None


@pytest.mark.parametrize('name', brief(RUN, ('llama', 'falcon_h1')))
def test_sampler_and_learner_agree_in_a_run(name, own_folder):
    run = learn(name, 'linear_log_prob')
    assert (run.wrong, run.refused) == (None, None)
    assert len(run.gaps) == 2 and None not in run.gaps
