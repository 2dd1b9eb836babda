"""Results of other libraries that ``tests/data`` has recorded."""
import json
from pathlib import Path

import pytest
import torch


def recorded(name):
    return json.loads((Path(__file__).parent.parent / 'data' / f'{name}.json').read_text())


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def tensors(source, *names):
    return [double(source[name]) for name in names]


def assert_gradient(leaf, expected):
    assert torch.allclose(leaf.grad, double(expected), atol=1e-8, rtol=0)


def assert_recorded(loss, leaf, case, gradient):
    """The loss, and its gradient with respect to a leaf, which the case has under this name."""
    loss.backward()
    assert loss.item() == pytest.approx(case['loss'], abs=1e-9)
    assert_gradient(leaf, case[gradient])
