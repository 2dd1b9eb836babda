"""Cases of a test that `make test` leaves to `make test-all`."""
import pytest


def long(*values, id=None):
    return pytest.param(*values, marks=pytest.mark.algotest, id=id)


def brief(cases, kept):
    """Values for ``parametrize``: those that are among ``kept`` run always, the others in the long checks."""
    return [case if case in kept else long(*case if isinstance(case, tuple) else [case]) for case in cases]
