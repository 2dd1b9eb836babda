import pytest

from .helper import CONFIGS, Run


@pytest.fixture(scope='package')
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp('runs')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield {n: Run(folder, n, policy=dict(collect=dict(groups=4), learn=learn)) for n, learn in CONFIGS.items()}
