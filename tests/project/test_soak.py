"""The verdict of benchmarks/soak.py."""
import os
import runpy

import pytest

BENCHMARKS = os.path.join(os.path.dirname(__file__), '..', '..', 'benchmarks')


@pytest.fixture
def held(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    growth = runpy.run_path(os.path.join(BENCHMARKS, 'soak.py'))['Growth']

    def verdict(memory, files=lambda i: 20):
        return growth.of([dict(update=25 * i, memory=memory(i), files=files(i)) for i in range(100)]).held

    return verdict


@pytest.mark.unittest
class TestVerdict:

    def test_what_grows_before_the_second_fifth_is_the_start(self, held):
        assert held(lambda i: 300 if i < 20 else 400)

    @pytest.mark.parametrize('end, expected', [(407, True), (409, False), (391, False)])
    def test_two_hundredths_are_allowed(self, held, end, expected):
        assert held(lambda i: 400 if i < 60 else end) == expected

    def test_a_slow_leak(self, held):
        assert not held(lambda i: 400 * (1 + 0.04 * i / 100))

    def test_a_file_that_is_left_open(self, held):
        assert held(lambda i: 400, files=lambda i: 20 + i % 2)
        assert not held(lambda i: 400, files=lambda i: 20 + i // 50)
