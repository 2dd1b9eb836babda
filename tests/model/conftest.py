import pytest

from ding_grpo.act import token_actor
from ding_grpo.model import autocast
from ding_grpo.model.read import attention
from ding_grpo.model.trial import architecture


@pytest.fixture
def each_model_has_its_trial():
    """No result of another test takes the place of a trial, and none of this test's is left for others."""
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
