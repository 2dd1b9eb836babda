import os
import signal

import pytest
from ding.worker import BaseLearner
from easydict import EasyDict

from ding_common import ConfigError
from ding_grpo.worker.report import InterruptHook, ReportHook


class Engine:
    """What the hooks read of a learner."""

    def __init__(self):
        self.hooks = {}
        self.saved = []

        class Count:
            val = 4

            def add(self, n):
                self.val += n

        self.last_iter = Count()
        self.call_hook = self.saved.append


@pytest.mark.unittest
class TestInterruptHook:

    @pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
    def test_signal_waits_for_the_end_of_the_update(self, number, capsys):
        before = signal.getsignal(number)
        hook, engine = InterruptHook('i', 100, position='after_iter'), Engine()
        hook(engine)  # no signal: nothing

        def serial_pipeline_of_a_test():
            os.kill(os.getpid(), number)  # would end the process or raise in whatever runs

        serial_pipeline_of_a_test()
        assert engine.saved == []
        assert signal.getsignal(number) is before  # a second one ends at once
        with pytest.raises(SystemExit) as caught:
            hook(engine)
        assert caught.value.code == 130 and engine.saved == ['after_run'] and engine.last_iter.val == 5
        assert 'saving after update 5' in capsys.readouterr().out

    def test_left_behind_by_a_failed_run_it_takes_no_signal(self):
        before = signal.default_int_handler
        signal.signal(signal.SIGINT, before)
        InterruptHook('i', 100, position='after_iter')
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            signal.getsignal(signal.SIGINT)  # the interpreter delivers signals between two instructions
        assert signal.getsignal(signal.SIGINT) is before

    def test_signals_are_given_back(self):
        before = signal.getsignal(signal.SIGINT)
        hook = InterruptHook('i', 100, position='after_iter')
        assert signal.getsignal(signal.SIGINT) is not before
        hook.release()
        assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.unittest
class TestReportHook:

    def test_unknown_option(self):
        with pytest.raises(ConfigError, match="ext_args.exprt = True: unknown key; did you mean 'export'"):
            ReportHook('report', 90, position='before_run', ext_args=EasyDict(exprt=True))

    def test_is_registered_for_configs(self):
        from ding.worker.learner.learner_hook import build_learner_hook_by_cfg

        from ding_grpo.policy import GRPOPolicy
        hooks = build_learner_hook_by_cfg(EasyDict(GRPOPolicy.config['learn']['learner']['hook']))
        assert [type(h) for h in hooks['before_run']] == [ReportHook]
        assert set(BaseLearner.default_config().hook) - set(GRPOPolicy.config['learn']['learner']['hook']) == \
            {'load_ckpt_before_run'}
