"""``import ding_grpo`` changes nothing before DI-engine is imported, and then registers all parts, in any order."""
import pytest

from tests.processes import python

UNTOUCHED = """
import gc, logging, os, signal, sys, warnings
import torch

def state():
    return dict(os.environ), sys.excepthook, signal.getsignal(signal.SIGINT), gc.get_freeze_count(), gc.isenabled(), \
        sys.stdout.errors, warnings.filters[:], logging.root.manager.disable, torch.get_num_threads()

modules, before = set(sys.modules), state()
import ding_grpo
from ding_grpo.rl_utils import grpo_policy_data, grpo_policy_error, rloo_policy_error
data = grpo_policy_data(*(torch.randn(2, 3, 5) for _ in range(3)), torch.ones(2, 3).long(), torch.ones(2), None)
assert grpo_policy_error(data)[0].isfinite()
new = set(sys.modules) - modules
wrong = [m for m in new if m.split('.')[:2] != ['ding_grpo', 'rl_utils']]
of_compat = ['ding_grpo.compat', 'ding_grpo.compat.after_import', 'ding_grpo.compat.registration']
assert sorted(wrong) == ['ding_grpo', *of_compat], wrong
assert state() == before
"""
REGISTERED = """
import gc, sys
import ding.entry
from ding.utils import BUFFER_REGISTRY, ENV_REGISTRY, MODEL_REGISTRY, POLICY_REGISTRY
assert 'grpo' in POLICY_REGISTRY and 'causal_lm' in MODEL_REGISTRY and 'token_env' in ENV_REGISTRY
assert ding.entry.serial_pipeline_onpolicy.__module__ == 'ding_grpo.entry.pipeline'
# but for the finder that waits for ding.framework
assert [type(f).__name__ for f in sys.meta_path if type(f).__module__.startswith('ding_grpo')] == ['AfterImport']
assert gc.isenabled() and gc.get_freeze_count() == 0
"""


def run(code):
    found = python('-c', code)
    # DI-engine and old gym print some ten lines when they are imported plainly
    assert (found.returncode, found.stdout, found.stderr) == (0, '', '')


def test_losses_import_torch_alone_and_the_parts_are_registered_with_ding():
    run(UNTOUCHED + REGISTERED)


@pytest.mark.algotest
@pytest.mark.parametrize('first', ['ding, ding_grpo', 'ding_grpo.policy', 'ding_grpo.compat.patches'])
def test_parts_are_registered_once_ding_is_imported_in_any_order(first):
    run(f'import {first}\n{REGISTERED}')
