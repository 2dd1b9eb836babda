import ding.entry.application_entry
import ding.entry.serial_entry_onpolicy
import pytest
from ding.utils import SERIAL_COLLECTOR_REGISTRY
from ding.worker import InteractionSerialEvaluator

import ding_grpo
from ding_grpo import compat
from ding_grpo.worker import GroupEvaluator


@pytest.mark.unittest
class TestCompat:

    def test_pipelines_build_our_evaluator(self):
        for module in (ding.entry.serial_entry_onpolicy, ding.entry.application_entry):
            assert module.InteractionSerialEvaluator is GroupEvaluator
        assert issubclass(GroupEvaluator, InteractionSerialEvaluator)

    def test_registry_hands_on_errors_without_a_page_of_hints(self, capsys):

        def refuse(cfg):
            raise ding_grpo.ConfigError('no')

        SERIAL_COLLECTOR_REGISTRY.register('refusing', refuse, force_overwrite=True)
        with pytest.raises(ding_grpo.ConfigError):
            SERIAL_COLLECTOR_REGISTRY.build('refusing', cfg={})
        assert capsys.readouterr().out == ''

    def test_env_managers_keep_quiet_about_their_spaces(self, capfd):
        from functools import partial

        from ding.envs import BaseEnvManager
        from easydict import EasyDict

        from dizoo_llm.envs import DingTokenEnv
        cfg = EasyDict(task=dict(type='think_answer'))
        manager = BaseEnvManager([partial(DingTokenEnv, cfg)], EasyDict(BaseEnvManager.default_config()))
        manager.launch()
        assert capfd.readouterr() == ('', '')

    def test_twice_is_once(self):
        pipeline = ding.entry.serial_pipeline_onpolicy
        compat.apply()
        assert ding.entry.serial_pipeline_onpolicy is pipeline
        assert ding.entry.serial_entry_onpolicy.InteractionSerialEvaluator is GroupEvaluator
