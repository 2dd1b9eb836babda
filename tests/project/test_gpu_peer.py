"""TRL's side of the benchmark on a GPU, as far as it can be tried without a GPU, TRL and vLLM."""
import importlib.util
import math
import sys
from types import SimpleNamespace

import pytest

from benchmarks.costs import gpu
from benchmarks.costs.gpu_peer import arguments

SIZE = gpu.SIZES[0]  # 8 prompts of at most 256 tokens, 8 rows of at most 256 each; 151,936 tokens


def test_arguments():
    plain, other = (arguments(SIZE, 'cuda', 3, vllm, eos=7) for vllm in (False, True))
    bias = math.log(2 * 151936 / 256)
    assert plain['generation_kwargs'] == dict(sequence_bias=[[[7], bias]])
    assert plain['bf16'] and not plain['use_cpu'] and plain['max_steps'] == 4
    assert plain['per_device_train_batch_size'] * plain['gradient_accumulation_steps'] == 64
    assert other == dict(
        plain,
        generation_kwargs=dict(logit_bias={7: bias}),
        use_vllm=True,
        vllm_mode='colocate',
        vllm_max_model_length=512,
        vllm_importance_sampling_correction=False,
    )


def test_they_are_those_of_trl():
    config = pytest.importorskip('trl').GRPOConfig
    assert set(arguments(SIZE, 'cuda', 3, True, eos=7)) <= set(config.__dataclass_fields__)


@pytest.mark.parametrize(
    'device, installed, lines', [
        ('cpu', True, ['| 0.5 B | TRL with vLLM, float32: left out, vLLM needs a GPU | | | | | |']),
        ('cuda', False, ['| 0.5 B | TRL with vLLM, bfloat16: left out, vLLM is not installed | | | | | |']),
        ('cuda', True, ['| 0.5 B | TRL with vLLM, bfloat16 | | | 1,500 | | 9.5 |'] * 2),
    ]
)
def test_a_line_says_why_it_was_left_out(device, installed, lines, monkeypatch, capsys):

    def measure_peer(size, device, rounds, vllm):
        assert (device, rounds, vllm) == ('cuda', 2, True)
        return [(2., 3000., 9.5)] * rounds

    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: object() if installed or name != 'vllm' else None)
    monkeypatch.setitem(sys.modules, 'benchmarks.costs.gpu_peer', SimpleNamespace(measure_peer=measure_peer))
    gpu.peer_lines(SIZE, device, 2, vllm=True)
    assert capsys.readouterr().out.splitlines() == lines
