import pytest

from tests.collect.helper import AbnormalEnv, make_collector


@pytest.fixture
def collector(think_answer, tmp_path):
    """Makes collectors, see ``make_collector``; ``think_answer`` may have been changed before."""
    made = []
    AbnormalEnv.broken = 0

    def make(*args, **kwargs):
        made.append(make_collector(*think_answer, tmp_path, *args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()
