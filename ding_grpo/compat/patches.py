"""
What ``import ding_grpo`` changes in DI-engine 0.5.3: its serial pipelines and its evaluation become those of
``entry/pipeline.py``, which take the same arguments and build the same parts for every policy; and the bare ``ding``
command, which has imported its pipelines before a plugin can be loaded, evaluates with ``GroupEvaluator`` and gets
managers of environment processes that a signal to the process group does not kill. What cannot train policies that
learn from groups says so (``refusals.py``).
"""
import ding.entry
import ding.entry.application_entry
import ding.entry.serial_entry
import ding.entry.serial_entry_onpolicy
from ding.utils import ENV_MANAGER_REGISTRY

from ding_common.processes.env_manager import OF_PROCESSES
from ding_grpo.entry import pipeline
from ding_grpo.evaluate import GroupEvaluator

from . import late  # noqa: F401  registers the policy under DI-engine's name for commands
from .after_import import watch
from .refusals import refuse_groups, refuse_modes


def apply() -> None:
    """Apply all changes. A second call has no effect."""
    for module in (ding.entry, ding.entry.serial_entry_onpolicy):
        module.serial_pipeline_onpolicy = pipeline.serial_pipeline_onpolicy
    for module in (ding.entry, ding.entry.serial_entry):
        module.serial_pipeline = pipeline.serial_pipeline
    for module in (ding.entry, ding.entry.application_entry):
        module.eval = pipeline.eval
    ding.entry.application_entry.InteractionSerialEvaluator = GroupEvaluator
    ENV_MANAGER_REGISTRY.update(OF_PROCESSES)
    refuse_modes()
    watch('ding.framework.middleware.collector', refuse_groups)
