from .arithmetic import ArithmeticTask
from .base import TASK_REGISTRY, Problem, Task, create_task
from .guess import GuessTask
from .gym_text import GymTextTask
from .key_and_door import KeyAndDoorTask
from .listed import FileTask, ListTask
from .mixture import MixtureTask
from .multi_turn import MultiTurnTask, Reply, Turn
from .products import ProductsTask
from .python_file import PythonTask
from .reasoning_gym import ReasoningGymTask
from .textarena import TextArenaTask
from .think_answer import ThinkAnswerTask
from .tools import ToolsTask
