from .arithmetic import ArithmeticTask
from .base import TASK_REGISTRY, Problem, Task, create_task
from .listed import FileTask, ListTask
from .mixture import MixtureTask
from .python_file import PythonTask
from .reasoning_gym import ReasoningGymTask
from .think_answer import ThinkAnswerTask
