"""What a task is. All else of this package builds on it."""
from .multi_turn import MultiTurnTask, Reply, Turn
from .problem import Problem, Text
from .registry import TASK_REGISTRY, create_task
from .task import Parts, Task, check_scorer
