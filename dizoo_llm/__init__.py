"""Tasks for language models, their rewards and the token environment. No model weights."""
from ding_common import ConfigError, TaskError, import_ding

import_ding()

from . import envs  # noqa: E402
from .tasks import TASK_REGISTRY, MultiTurnTask, Problem, Reply, Task, Turn  # noqa: E402
