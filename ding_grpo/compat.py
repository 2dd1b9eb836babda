"""
The only file that alters DI-engine. Each line names the defect of 0.5.3 that it mends; tests/test_compat.py holds them.
"""
import ding.entry.application_entry
import ding.entry.serial_entry_onpolicy
import ding.envs.env_manager.base_env_manager
from ding.utils import registry

from ding_grpo.worker import GroupEvaluator


def apply() -> None:
    """
    Overview:
        Mend what the plugin needs mended. Calling it twice does no harm.
    """
    # serial_onpolicy and eval always build InteractionSerialEvaluator, whatever create_config.evaluator says: it
    # cannot record the texts it evaluated, nor end in one line when a task fails. The subclass is the same otherwise.
    ding.entry.serial_entry_onpolicy.InteractionSerialEvaluator = GroupEvaluator
    ding.entry.application_entry.InteractionSerialEvaluator = GroupEvaluator
    # Registry.build prints a page of "Hint: expected args" before it hands on any error, a ConfigError too.
    registry._innest_error = False
    # Env managers announce their spaces on the root logger, which has no file yet and only fills the screen.
    ding.envs.env_manager.base_env_manager.space_log_flag = False
