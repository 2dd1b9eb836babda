"""The record of matrix products in benchmarks/beside_trl: what it writes down is what ran."""
import os
import sys
import time

import pytest
import torch

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'benchmarks', 'beside_trl'))
from operations import KINDS, NAMES, Profile  # noqa: E402
from products import Recorder, Replay  # noqa: E402

from ding_grpo.rl_utils import matrix_product  # noqa: E402
from ding_grpo.rl_utils.log_probs.matrix_product import linear  # noqa: E402


def record(rows, columns):
    """Of one linear layer of 3 outputs, or of 512, forward and backward."""
    weight = torch.randn(columns, 64, requires_grad=True)
    x = torch.randn(rows, 64, requires_grad=True)
    with Recorder({weight.data_ptr()}) as found:
        found.sampling = True
        with torch.no_grad():
            linear(x, weight)
        found.sampling = False
        linear(x, weight).sum().backward()
    return found


@pytest.mark.unittest
class TestProducts:

    @pytest.mark.parametrize('rows, columns', [(5, 3), (256, 512)])  # by torch, and by oneDNN if this build has it
    def test_forward_and_twice_backward(self, rows, columns, monkeypatch):
        monkeypatch.setattr(matrix_product, '_FASTER', matrix_product._AVAILABLE)
        calls = record(rows, columns).calls
        assert [call['part'] for call in calls] == ['sampling', 'learning', 'learning', 'learning']
        weights = [call['weight'] for call in calls]
        assert weights.count(0) == 3 and weights.count(None) == 1  # the gradient of the weight has no weight in it
        replay = Replay(calls)
        assert replay.operations() == 4 * 2 * rows * columns * 64
        seconds = replay.seconds()
        assert set(seconds) == {'sampling', 'learning'} and min(seconds.values()) > 0

    def test_the_type_is_kept(self):
        weight, x = torch.randn(3, 64), torch.randn(5, 64)
        with Recorder({weight.data_ptr()}) as found, torch.autocast('cpu', torch.bfloat16):
            torch.nn.functional.linear(x, weight)
        (_, a, b), = Replay(found.calls)._calls
        assert a.dtype == b.dtype == torch.bfloat16

    def test_attention_is_counted(self):
        q = torch.randn(1, 2, 7, 8)
        with Recorder(set()) as found:
            torch.nn.functional.scaled_dot_product_attention(q, q, q)
        assert found.attention == dict(sampling=0, learning=2 * 2 * 2 * 7 * 7 * 8)


class Sleep(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x):
        time.sleep(0.2)
        return x.clone()


@pytest.mark.unittest
def test_the_time_of_operations_by_kind():
    x, w = torch.randn(400, 300), torch.randn(400, 300)
    start = time.perf_counter()
    with Profile() as profile:
        Sleep.apply(x)
        for _ in range(3):
            x @ w.t()
        x.clone()
        torch.exp(x)
    seconds = time.perf_counter() - start
    assert list(profile.found) == list(NAMES[:-1])
    assert sum(profile.found.values()) <= 1e3 * (seconds - 0.2)  # without Python, which sleeps
    assert min(profile.found[kind] for kind in ('products', 'copies', 'elementwise and other')) > 0
    assert profile.found['optimizer'] == profile.found['attention'] == 0
    names = [name for kind in KINDS.values() for name in kind]
    assert len(names) == len(set(names))
