import pytest

from ding_grpo.model.trial import architecture


@pytest.fixture
def each_model_has_its_trial():
    """No result of another test takes the place of a trial, and none of this test's is left for others."""
    architecture.RESULTS.clear()
    yield
    architecture.RESULTS.clear()
