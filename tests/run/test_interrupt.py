"""Ctrl-C and SIGTERM; tests/pipelines/test_tokens.py has whole runs."""
import os
import signal

import pytest

from ding_grpo.run.interrupt import Interrupt
from tests.run.configs import tokens
from tests.runs import each_update, train


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_sets_a_flag_and_the_next_one_ends_the_run_at_once(number):
    before, interrupt = signal.getsignal(number), Interrupt()
    interrupt.catch()
    assert signal.getsignal(number) is not before
    os.kill(os.getpid(), number)  # would end the process or raise in whatever runs
    assert interrupt.name == signal.Signals(number).name and signal.getsignal(number) is before
    interrupt.catch()
    interrupt.release()
    assert signal.getsignal(number) is before


@pytest.mark.envtest
@pytest.mark.parametrize('fails', [False, True])
def test_a_run_that_ends_gives_signals_back(own_folder, monkeypatch, fails):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    each_update(monkeypatch, lambda *_: 1 / 0 if fails else None)
    try:
        train(tokens(), 1)
    except ZeroDivisionError:
        assert fails
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
