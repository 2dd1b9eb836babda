"""Tasks for language models, their rewards and the token environment. No model weights."""
from ding_common import ConfigError, TaskError, import_ding, importing

with importing():
    import_ding()

    from . import envs
    from .tasks import TASK_REGISTRY, MultiTurnTask, Problem, Reply, Task, Turn
