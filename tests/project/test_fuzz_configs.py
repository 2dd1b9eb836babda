"""The fuzz run over configs: a sample of it, and that it would find what it looks for."""
import os
import time

import pytest

from tests.processes import Process, run_program
from tools import fuzz_configs
from tools.fuzz_configs import KINDS, NAMES, make_case, run_case, shrunk


def test_every_config_and_every_kind_of_wrong_has_its_turn(tmp_path):
    cases = [make_case(0, index, str(tmp_path)) for index in range(100)]
    assert {case.config for case in cases} == set(NAMES) and {case.kind for case in cases} == set(KINDS)


def test_a_sample_has_no_defect(tmp_path):
    code, out = Process(run_program, ['tools.fuzz_configs', '--cases', '2', '--seed', '11'], tmp_path).end(300)
    assert code == 0 and '2 cases of seed 11' in out, out


@pytest.mark.parametrize(
    'train, outcome', [
        (lambda case: time.sleep(60), 'hung'),
        (lambda case: 1 / 0, 'traceback'),
        (lambda case: os._exit(3), 'traceback'),
    ]
)
def test_a_defect_is_found(tmp_path, train, outcome):
    case = fuzz_configs.Case('cartpole_grpo', 'value', '', 'learning_rate', *shrunk('cartpole_grpo', str(tmp_path)))
    assert run_case(case, limit=1 if outcome == 'hung' else 10, run=train)[0] == outcome
