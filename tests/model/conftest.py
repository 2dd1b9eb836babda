import pytest

from ding_grpo.model.trial import architecture


@pytest.fixture(autouse=True)
def each_model_has_its_trial():
    """Tests of models put in what a trial has to find, so that no result of another test may take its place."""
    architecture.RESULTS.clear()
    yield
    architecture.RESULTS.clear()
