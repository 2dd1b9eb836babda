import pytest

from tests.model.helper import tokens_read


@pytest.fixture
def decoded(tiny_model):
    """The number of tokens of each pass of the model: those of the prompts, then the lines of each step."""
    return tokens_read(tiny_model)
