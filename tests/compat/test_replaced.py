"""What importing the plugin replaces in DI-engine, and what it changes of the process: nothing but the list below."""
import pytest

from tests.processes import python

REPLACED = [
    'ding.entry.application_entry.InteractionSerialEvaluator',
    'ding.entry.application_entry.eval',
    'ding.entry.eval',
    'ding.entry.serial_entry.serial_pipeline',
    'ding.entry.serial_entry_onpolicy.serial_pipeline_onpolicy',
    'ding.entry.serial_pipeline',
    'ding.entry.serial_pipeline_onpolicy',
]
PROGRAM = """
import gc, os, sys
import ding, ding.entry, ding.entry.cli, ding.worker, ding.policy, ding.envs, ding.rl_utils, ding.config
import gymnasium, torch, transformers


def names():
    found = {}
    for module in [m for name, m in sys.modules.items() if name.split('.')[0] in ('ding', 'ditk') and m is not None]:
        for name, value in list(vars(module).items()):
            found[f'{module.__name__}.{name}'] = value
            if isinstance(value, type) and value.__module__.split('.')[0] in ('ding', 'ditk'):
                for key, member in list(vars(value).items()):
                    found[f'{value.__module__}.{value.__qualname__}.{key}'] = member
    return found


def of_process():
    of_torch = 'TORCHINDUCTOR_CACHE_DIR'
    return {k: v for k, v in os.environ.items() if k != of_torch}, gc.get_freeze_count(), sys.excepthook


before, process, modules = names(), of_process(), set(sys.modules)
import ding_grpo
import ding_grpo.policy
assert of_process() == process
assert not [name for name in set(sys.modules) - modules if name.startswith('ding.')
            and not getattr(sys.modules[name], '__file__', '').endswith('.py')]
after = names()
print('\\n'.join(sorted(name for name in before if after[name] is not before[name])))
"""


@pytest.mark.envtest
def test_seven_names_of_di_engine_and_nothing_of_the_process():
    run = python('-c', PROGRAM)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == REPLACED
