import pytest


@pytest.fixture
def quick(monkeypatch):
    """Scores that wait are tried again after hundredths of a second, and counted from 0."""
    from dizoo_llm.base import awaited
    monkeypatch.setattr(awaited, 'FIRST_WAIT', 0.005)
    awaited.COUNTS.clear()
    yield
    awaited.COUNTS.clear()
