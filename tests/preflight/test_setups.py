"""Set-ups of ``make bench NAME=preflight``, each of which is named by its cause."""
import pytest

from benchmarks.health.preflight import unfit
from benchmarks.health.unfit_setups import UNFIT

LEFT = ('a score takes 1.2 s', 'wrong answer key')  # a minute; named otherwise, see docs/results/preflight.md


@pytest.mark.parametrize('name', [name for name in UNFIT if name not in LEFT])
def test_the_planted_cause_is_named(name, tmp_path):
    assert UNFIT[name].cause in unfit(UNFIT[name], str(tmp_path)).causes
