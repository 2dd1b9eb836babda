"""Tasks for language models, their rewards and the token environment. No model weights."""
from ding_common import ConfigError, TaskError, import_ding, importing, is_program, uncollected

with importing() if is_program() else uncollected():
    import_ding()

    from . import envs, tasks
    from .base import TASK_REGISTRY, MultiTurnTask, Problem, Reply, Task, Turn, create_task
