import pytest

from ding_grpo.rl_utils.log_probs import tiles


@pytest.fixture(params=[3, 7])
def tile(request, monkeypatch):
    """Tiles of 3 of the 7 tokens of the vocabulary, the last of one token; or of all."""
    monkeypatch.setattr(tiles, 'VOCABULARY', request.param)
