"""The fuzz run over configs: a sample of it, and that it would find what it looks for."""
import os
import subprocess
import sys

import click
import pytest

from ding_common import ConfigError

from tools import fuzz_configs
from tools.fuzz_configs import KINDS, NAMES, make_case, outcome_of, run_case, shrunk


@pytest.fixture
def case(tmp_path):
    """One that trains if nothing is done to it."""
    return fuzz_configs.Case('cartpole_grpo', 'value', '', 'learning_rate', *shrunk('cartpole_grpo', str(tmp_path)))


@pytest.mark.unittest
class TestCases:

    def test_a_case_is_a_function_of_seed_and_index(self, tmp_path):
        cases = [make_case(3, 17, str(tmp_path)) for _ in range(2)]
        assert cases[0].what == cases[1].what and cases[0].main == cases[1].main
        assert make_case(4, 17, str(tmp_path)).what != cases[0].what

    def test_every_config_and_every_kind_of_wrong_has_its_turn(self, tmp_path):
        cases = [make_case(0, index, str(tmp_path)) for index in range(100)]
        assert {case.config for case in cases} == set(NAMES) and {case.kind for case in cases} == set(KINDS)
        for case in cases:
            main, _ = shrunk(case.config, str(tmp_path))
            assert repr(case.main) != repr(main) or case.kind == 'value', case.what


@pytest.mark.unittest
class TestOutcome:

    @pytest.mark.parametrize(
        'error, outcome',
        [
            (None, 'trained'),
            (ConfigError('policy.learn.learning_rate = -1: must be a number.'), 'refused, key named'),
            (ConfigError('policy.learn.lr = 1: unknown key; Allowed: learning_rate.'), 'refused, key not named'),
            (ConfigError('policy.learn.learning_rates = 1: unknown key.'), 'refused, key not named'),
            (ConfigError('learning_rate\n= 1'), 'traceback'),
            (click.UsageError('learning_rate'), 'traceback'),  # exit code 2
            (KeyError('learning_rate'), 'traceback'),
        ],
        ids=repr
    )
    def test_of_what_a_run_ends_with(self, error, outcome):
        assert outcome_of('learning_rate', error) == outcome


@pytest.mark.unittest
class TestRun:

    def test_a_sample_has_no_defect(self):
        command = [sys.executable, fuzz_configs.__file__, '--cases', '3', '--seed', '11']
        ended = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS='1'))
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert '3 cases of seed 11' in ended.stdout

    def test_what_hangs_is_found(self, case, monkeypatch):
        import time
        monkeypatch.setattr(fuzz_configs, 'train', lambda case: time.sleep(60))
        assert run_case(case, limit=1)[0] == 'hung'

    def test_what_raises_is_found(self, case, monkeypatch):
        monkeypatch.setattr(fuzz_configs, 'train', lambda case: 1 / 0)
        outcome, message = run_case(case, limit=10)
        assert outcome == 'traceback' and 'ZeroDivisionError' in message

    def test_a_process_that_dies_is_found(self, case, monkeypatch):
        monkeypatch.setattr(fuzz_configs, 'train', lambda case: os._exit(3))
        assert run_case(case, limit=10) == ('traceback', 'the process died')
