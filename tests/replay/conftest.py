import os

import pytest

from .helper import CONFIGS, Run


@pytest.fixture(scope='package')
def runs(tmp_path_factory):
    folder, before = tmp_path_factory.mktemp('runs'), os.getcwd()
    os.chdir(folder)
    try:
        yield {n: Run(folder, n, policy=dict(collect=dict(groups=4), learn=learn)) for n, learn in CONFIGS.items()}
    finally:
        os.chdir(before)
