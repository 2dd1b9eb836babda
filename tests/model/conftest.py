import pytest

from ding_grpo.act import token_actor
from ding_grpo.model import autocast
from ding_grpo.model.read import attention
from ding_grpo.model.trial import architecture


@pytest.fixture(autouse=True)
def each_model_has_its_trial():
    """Tests of models put in what a trial has to find, so that no result of another test may take its place."""
    architecture.RESULTS.clear()
    yield
    architecture.RESULTS.clear()


@pytest.fixture
def multiplies_bfloat16(monkeypatch):
    """A function that sets on which devices, ``cpu`` or ``cuda``, bfloat16 is native."""

    def on(*devices):
        for module in (autocast, token_actor, attention):
            monkeypatch.setattr(module, 'multiplies_bfloat16', lambda device: device in devices)

    return on
