import pytest

from ding_grpo.model.read.decoding import SharedDecoding


@pytest.fixture
def decoded(monkeypatch, tiny_model):
    """The number of lines of each step of a decoding, after the trial that chooses how the model is read."""
    assert tiny_model.shares_prompts
    lines, step = [], SharedDecoding.step
    monkeypatch.setattr(SharedDecoding, 'step', lambda self, token: lines.append(len(token)) or step(self, token))
    return lines
