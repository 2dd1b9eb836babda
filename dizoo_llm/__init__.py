"""Tasks for language models, their rewards and the token environment. No model weights."""
from contextlib import nullcontext

from ding_common import ConfigError, TaskError, import_ding, importing, is_program

with importing() if is_program() else nullcontext():
    import_ding()

    from . import envs, tasks
    from .base import TASK_REGISTRY, MultiTurnTask, Problem, Reply, Task, Turn, create_task
