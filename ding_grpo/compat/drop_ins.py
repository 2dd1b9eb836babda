"""
Names of DI-engine's GitHub main (commit d0b21d065) that its release 0.5.3 lacks, with the functions of this project.
Code written for main can then import them from the same modules. Modules that DI-engine contains are left alone.
"""
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from typing import Any, Dict

from ding.rl_utils import ppo

import ding_grpo.rl_utils as rl_utils

_LOG_PROB = ('naive_method', 'efficient_method', 'less_efficient_method', 'LogProbFunction')
MODULES = {
    'ding.rl_utils.log_prob_utils': _LOG_PROB,
    'ding.rl_utils.grpo': ('grpo_policy_data', 'grpo_info', 'grpo_policy_error', *_LOG_PROB),
    'ding.rl_utils.rloo': ('rloo_policy_data', 'rloo_info', 'rloo_policy_error', *_LOG_PROB),
}


def add() -> None:
    """Add the missing modules, and ``calculate_kl_div`` to ``ding.rl_utils.ppo``. A second call has no effect."""
    for name, members in MODULES.items():
        if find_spec(name) is None:
            _add_module(name, {member: getattr(rl_utils, member) for member in members})
    if not hasattr(ppo, 'calculate_kl_div'):
        ppo.calculate_kl_div = rl_utils.calculate_kl_div


def _add_module(name: str, members: Dict[str, Any]) -> None:
    module = module_from_spec(ModuleSpec(name, loader=None, origin=__name__))
    module.__doc__ = f'Added by {__name__}: the release of DI-engine has no such module.'
    module.__all__ = list(members)
    vars(module).update(members)
    sys.modules[name] = module
    package, _, child = name.rpartition('.')
    setattr(import_module(package), child, module)
