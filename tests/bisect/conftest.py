import pytest

from .helper import train


@pytest.fixture(scope='package')
def run(tmp_path_factory):
    """The path of a finished run of four updates."""
    folder = tmp_path_factory.mktemp('run')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train('a')
    return str(folder / 'a')
