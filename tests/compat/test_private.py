"""Private state of DI-engine, as ding_common.processes.ding_private reads and changes it."""
from functools import partial

import numpy as np
import pytest
from ding.envs import BaseEnvManager
from easydict import EasyDict

from ding_common.processes.ding_private import disable_auto_reset
from dizoo_llm.envs import DingTokenEnv


@pytest.mark.unittest
class TestPrivate:

    def test_an_environment_is_reset_at_its_end_unless_that_is_disabled(self):
        cfg = EasyDict(task=dict(type='think_answer'), max_new_tokens=1)
        for disabled in (False, True):
            manager = BaseEnvManager([partial(DingTokenEnv, cfg)], EasyDict(BaseEnvManager.default_config()))
            if disabled:
                disable_auto_reset(manager)
            manager.launch()
            assert manager.step({0: np.array([0])})[0].done
            assert (0 in manager.ready_obs) == (not disabled)
            manager.close()
