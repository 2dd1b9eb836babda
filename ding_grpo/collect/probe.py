"""What the scorer of an environment pays for texts that no policy wrote."""
from typing import Any, Dict, List

from ding.envs import BaseEnvManager
from ding.envs.env_manager.base_env_manager import timeout_wrapper

from ding_common import TaskError
from ding_common.processes.ding_private import step_timeout
from ding_common.processes.random_state import random_state_kept
from ding_grpo.logs.screen import show


def probe(manager: BaseEnvManager, problems: int) -> List[Dict[str, Any]]:
    """Score texts that no policy wrote, in environments that can (``dizoo_llm/envs/probe.py``). The random numbers of
    the run stay as they are. Returns what ``of_probes`` takes; empty for other environments, and if a problem has no
    prompt, which the environments report when they get to it."""
    own = getattr(manager.env_ref, 'probe', None)
    if own is None:
        return []
    with random_state_kept():
        try:
            return timeout_wrapper(own, step_timeout(manager))(problems)
        except TaskError:
            return []
        except TimeoutError:
            show(
                f'env.manager.step_timeout = {step_timeout(manager)}: the scorer took longer for the '
                f'demonstrations and junk of {problems} problems, so they are not compared'
            )
            return []
