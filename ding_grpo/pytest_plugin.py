"""The assertions of ``ding_grpo.testing`` as fixtures of pytest. Its start imports neither torch nor DI-engine."""
from typing import Callable

import pytest

from . import testing


@pytest.fixture
def assert_not_hackable() -> Callable:
    """Fails if a reward pays for junk."""
    return testing.assert_not_hackable


@pytest.fixture
def assert_learns() -> Callable:
    """Fails if a tiny model does not learn a reward."""
    return testing.assert_learns
