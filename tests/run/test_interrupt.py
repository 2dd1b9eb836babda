"""What a run does with Ctrl-C and SIGTERM."""
import os
import signal

import pytest

from ding_grpo.run.interrupt import Interrupt
from tests.run.configs import tokens
from tests.runs import each_update, metrics, state, train


@pytest.mark.unittest
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
@pytest.mark.curves
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_the_update_under_way_is_finished_and_saved(own_folder, monkeypatch, capfd, number):
    before = signal.getsignal(number)
    each_update(monkeypatch, lambda update, *_: update == 3 and os.kill(os.getpid(), number))
    with pytest.raises(SystemExit) as caught:
        train(tokens(), 10)
    assert caught.value.code == 128 + number and signal.getsignal(number) is before
    assert f'{signal.Signals(number).name}: saving after update 4' in capfd.readouterr().out
    assert state(4)['last_iter'] == len(metrics()) == 4
    assert os.path.exists('run/model/last/model.safetensors') and os.path.exists('run/curve.png')


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
