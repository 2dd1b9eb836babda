"""Private state of DI-engine, as ding_grpo.compat.private reads and changes it."""
import inspect
from functools import partial

import numpy as np
import pytest
from ding.envs import BaseEnvManager
from ding.worker import BaseLearner
from ding.worker.learner.learner_hook import LogShowHook
from easydict import EasyDict

from dizoo_llm.envs import DingTokenEnv
from ding_grpo.compat import private

NO_LIMIT = EasyDict(num_updates=None)  # of ``policy.learn``


def outer(run, max_env_step=7):

    def serial_pipeline(input_cfg, max_train_iter=3, max_env_step=max_env_step):
        return run()

    return serial_pipeline


@pytest.mark.unittest
class TestPrivate:

    def test_limits_of_the_call(self):
        pipeline = outer(None)
        with private.running(pipeline, {}, max_train_iter=5):
            assert private.limits(NO_LIMIT) == dict(max_train_iter=5, max_env_step=7) and private.is_running(None)
            with private.running(pipeline, {}):
                assert private.limits(NO_LIMIT)['max_train_iter'] == 3
            assert private.limits(NO_LIMIT)['max_train_iter'] == 5
            for number, least in ((4, 4), (6, 5)):
                assert private.limits(EasyDict(num_updates=number))['max_train_iter'] == least
        assert private.limits(EasyDict(num_updates=4)) == dict(max_train_iter=4)
        assert private.limits(NO_LIMIT) == {} and not private.is_running(inspect.currentframe())

    def test_limits_of_a_frame(self):
        """Of the bare ding command, whose pipelines are DI-engine's own."""
        assert outer(lambda: private.limits(NO_LIMIT))({}) == dict(max_train_iter=3, max_env_step=7)
        assert outer(lambda: private.is_running(inspect.currentframe()))({})

    def test_a_pipeline_that_fails_runs_no_longer(self):
        with pytest.raises(ValueError), private.running(outer(None), {}):
            raise ValueError
        assert private.limits(NO_LIMIT) == {}

    def test_hooks_that_a_learner_adds_by_itself_are_removed(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        learner = BaseLearner(BaseLearner.default_config(), exp_name='x', instance_name='y', tb_logger=0, policy=None)
        hooks = learner._hooks['after_run']
        assert [hook.name for hook in hooks] == ['save_ckpt_after_run']
        assert private.find_hook(learner, 'after_iter', LogShowHook) is not None
        assert private.find_hook(learner, 'after_iter', int) is None
        private.remove_hooks(learner, 'save_ckpt_after_run')
        assert hooks == [] and learner._hooks['before_run'] != []

    def test_after_train(self):
        calls = []
        learner = EasyDict(train=lambda data, envstep: [dict(loss=data), dict(loss=envstep)])
        private.after_train(learner, lambda engine, metrics: calls.append((engine is learner, metrics)))
        assert learner.train(1, envstep=2) == [dict(loss=1), dict(loss=2)]
        assert calls == [(True, [dict(loss=1), dict(loss=2)])]

    def test_an_environment_is_reset_at_its_end_unless_that_is_disabled(self):
        cfg = EasyDict(task=dict(type='think_answer'), max_new_tokens=1)
        for disabled in (False, True):
            manager = BaseEnvManager([partial(DingTokenEnv, cfg)], EasyDict(BaseEnvManager.default_config()))
            if disabled:
                private.disable_auto_reset(manager)
            manager.launch()
            assert manager.step({0: np.array([0])})[0].done
            assert (0 in manager.ready_obs) == (not disabled)
            manager.close()
