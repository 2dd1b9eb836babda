"""Code that was written for DI-engine's GitHub main imports these names on the release."""
import importlib
import sys
from importlib.util import find_spec
from types import ModuleType

import ding.rl_utils
import pytest
import torch
from ding.rl_utils import ppo

from ding_grpo import rl_utils
from ding_grpo.compat import drop_ins


@pytest.mark.unittest
class TestDropIns:

    def test_the_imports_of_code_for_main(self):
        from ding.rl_utils.grpo import grpo_info, grpo_policy_data, grpo_policy_error
        from ding.rl_utils.log_prob_utils import LogProbFunction, efficient_method, less_efficient_method, naive_method
        from ding.rl_utils.ppo import calculate_kl_div
        from ding.rl_utils.rloo import rloo_info, rloo_policy_data, rloo_policy_error
        for found in (grpo_info, grpo_policy_data, grpo_policy_error, LogProbFunction, efficient_method, naive_method,
                      less_efficient_method, calculate_kl_div, rloo_info, rloo_policy_data, rloo_policy_error):
            assert any(found is value for value in vars(rl_utils).values())

    def test_they_compute(self):
        from ding.rl_utils.grpo import grpo_policy_data, grpo_policy_error
        # ratio 1, adv 2 and -1: the loss is -(2 - 1) / 2
        logit = torch.zeros(2, 3, 4)
        data = grpo_policy_data(logit, logit, logit, torch.zeros(2, 3).long(), torch.tensor([2., -1.]), None)
        loss, (approx_kl, clipfrac) = grpo_policy_error(data=data, clip_ratio=0.2, beta=0.1)
        assert loss.item() == pytest.approx(-0.5) and approx_kl == clipfrac == 0

    @pytest.mark.parametrize('name', drop_ins.MODULES)
    def test_a_module_like_any_other(self, name):
        module = importlib.import_module(name)
        assert module is getattr(ding.rl_utils, name.rpartition('.')[2]) and find_spec(name) is module.__spec__
        for member in drop_ins.MODULES[name]:
            assert getattr(module, member) is getattr(rl_utils, member)

    def test_twice_is_once(self):
        before = {name: sys.modules[name] for name in drop_ins.MODULES}
        drop_ins.add()
        assert all(sys.modules[name] is module for name, module in before.items())

    @pytest.mark.parametrize('name', drop_ins.MODULES)
    def test_what_di_engine_contains_is_left_alone(self, name, monkeypatch):
        own = ModuleType(name)
        own.__spec__ = find_spec(name)
        monkeypatch.setitem(sys.modules, name, own)
        monkeypatch.setattr(ppo, 'calculate_kl_div', len)
        drop_ins.add()
        assert sys.modules[name] is own and ppo.calculate_kl_div is len

    def test_what_the_release_contains_is_unchanged(self):
        assert ding.rl_utils.ppo_error is ppo.ppo_error is not rl_utils.ppo_error
