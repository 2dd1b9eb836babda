from .base import TASK_REGISTRY, Problem, Task, create_task
from .think_answer import ThinkAnswerTask
