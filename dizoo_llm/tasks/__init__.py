"""The shipped tasks."""
from dizoo_llm.base import TASK_REGISTRY, MultiTurnTask, Problem, Reply, Task, Turn, create_task
from dizoo_llm.data import FileTask, ListTask

from .agent import AgentTask
from .arithmetic import ArithmeticTask
from .environments import EnvironmentTask, OpenEnvTask
from .guess import GuessTask
from .gym_text import GymTextTask
from .key_and_door import KeyAndDoorTask
from .mixture import MixtureTask
from .products import ProductsTask
from .rearrange import RearrangeTask
from .reasoning_gym import ReasoningGymTask
from .textarena import TextArenaTask
from .think_answer import ThinkAnswerTask
from .tools import ToolsTask
from .verifiers import VerifiersTask
