"""What a language model is to learn: tasks, their rewards and the environment over tokens. Holds no weights."""
from ding_common import ConfigError, TaskError, import_ding

import_ding()

from . import envs  # noqa: E402
from .tasks import TASK_REGISTRY, Problem, Task  # noqa: E402
