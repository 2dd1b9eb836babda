"""What a run does with Ctrl-C and SIGTERM."""
import os
import signal

import pytest
import torch
from ding.entry import serial_pipeline_onpolicy

from ding_common import read_json_lines
from ding_grpo.policy import GRPOPolicy
from ding_grpo.run.interrupt import Interrupt


@pytest.mark.unittest
class TestInterrupt:

    @pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
    def test_signal_sets_a_flag(self, number):
        before = signal.getsignal(number)
        interrupt = Interrupt()
        interrupt.catch()

        def serial_pipeline_of_a_test():
            os.kill(os.getpid(), number)  # would end the process or raise in whatever runs

        serial_pipeline_of_a_test()
        assert interrupt.name == signal.Signals(number).name
        assert signal.getsignal(number) is before  # a second one ends at once

    def test_signals_are_given_back(self):
        before = signal.getsignal(signal.SIGINT)
        interrupt = Interrupt()
        interrupt.catch()
        assert signal.getsignal(signal.SIGINT) is not before
        interrupt.release()
        assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.unittest
class TestRun:

    @pytest.mark.curves
    @pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
    def test_the_update_under_way_is_finished_and_saved(self, think_answer, monkeypatch, capfd, number):
        main, create = think_answer
        forward, before = GRPOPolicy._forward_learn, signal.getsignal(number)

        def interrupted(self, data):
            if self._learning.updates == 3:
                os.kill(os.getpid(), number)
            return forward(self, data)

        monkeypatch.setattr(GRPOPolicy, '_forward_learn', interrupted)
        with pytest.raises(SystemExit) as caught:
            serial_pipeline_onpolicy((main, create), seed=0)
        assert caught.value.code == 128 + number and signal.getsignal(number) is before
        assert f'{signal.Signals(number).name}: saving after update 4' in capfd.readouterr().out
        assert torch.load('run/ckpt/iteration_4.pth.tar', weights_only=True)['last_iter'] == 4
        assert len(read_json_lines('run/log/learner/metrics.jsonl')) == 4
        assert os.path.exists('run/model/last/model.safetensors') and os.path.exists('run/curve.png')

    def test_a_finished_run_gives_signals_back(self, think_answer):
        before = signal.getsignal(signal.SIGTERM)
        serial_pipeline_onpolicy(think_answer, seed=0, max_train_iter=1)
        assert signal.getsignal(signal.SIGTERM) is before

    def test_a_failed_run_gives_signals_back(self, think_answer, monkeypatch):
        before = signal.getsignal(signal.SIGINT)
        monkeypatch.setattr(GRPOPolicy, '_forward_learn', lambda self, data: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            serial_pipeline_onpolicy(think_answer, seed=0)
        assert signal.getsignal(signal.SIGINT) is before
