import pytest

from ding_grpo.model import output_head, reader


@pytest.fixture(autouse=True)
def each_model_has_its_trial(monkeypatch):
    """Tests of models put in what a trial has to find, so that no result of another test may take its place."""
    monkeypatch.setattr(reader, '_FOUND', {})
    monkeypatch.setattr(output_head, '_MEASURED', {})
