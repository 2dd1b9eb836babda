import subprocess
import sys

import pytest


@pytest.mark.unittest
@pytest.mark.parametrize('module', ['ding_grpo', 'dizoo_llm'])
def test_importing_prints_nothing(module):
    # DI-engine and old gym print some ten lines when they are imported plainly
    run = subprocess.run([sys.executable, '-c', f'import {module}'], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, '', '')
