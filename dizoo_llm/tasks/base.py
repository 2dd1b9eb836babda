import math
import os
import traceback
from abc import ABC, abstractmethod
from typing import Any, Dict, List, NamedTuple, Optional

from ding.utils import import_module
from ding.utils.registry import Registry

from ding_common import ConfigError, TaskError, nearest

TASK_REGISTRY = Registry()


class Problem(NamedTuple):
    """
    Overview:
        One problem of a task, in text.
    """
    prompt: str
    answer: str = ''
    metadata: Dict[str, Any] = {}


class Task(ABC):
    """
    Overview:
        Where problems and scores come from. A task speaks text and knows neither tokens nor models.
    Interfaces:
        ``__len__``, ``problem``, ``score``
    Property:
        ``weights``, ``return_part``, ``words``
    """

    # (Dict[str, float]) The parts that ``score`` returns, and their weights in the reward.
    weights: Dict[str, float] = {}
    # (Optional[str]) The part that is the episode's return in evaluation; None takes the reward.
    return_part: Optional[str] = None
    # (Optional[List[str]]) The words that prompts and answers are made of, for a tokenizer made here.
    words: Optional[List[str]] = None

    @abstractmethod
    def __len__(self) -> int:
        """Number of problems."""

    @abstractmethod
    def problem(self, index: int) -> Problem:
        """
        Overview:
            A pure function of the index.
        Arguments:
            - index (:obj:`int`): From 0 to ``len(self) - 1``.
        """

    @abstractmethod
    def score(self, problem: Problem, completion: str) -> Dict[str, float]:
        """
        Overview:
            Score a completion, which is data: it is never evaluated.
        Arguments:
            - problem (:obj:`Problem`): What was asked.
            - completion (:obj:`str`): What the policy wrote, without the prompt.
        Returns:
            - parts (:obj:`Dict[str, float]`): One finite number for each key of ``weights``.
        """

    def checked_problem(self, index: int) -> Problem:
        """
        Overview:
            ``problem``, held to what it promises.
        Raises:
            - TaskError: If it raises, or gives something else than a ``Problem``.
        """
        try:
            problem = self.problem(index)
        except Exception as error:  # as in checked_score
            raise TaskError(f'{type(self).__name__} raised {_describe(error)} for problem {index}') from error
        if not isinstance(problem, Problem):
            raise TaskError(f'{type(self).__name__} gave {problem!r} for problem {index}, must give a Problem')
        return problem

    def checked_score(self, problem: Problem, completion: str) -> Dict[str, float]:
        """
        Overview:
            ``score``, held to what it promises.
        Raises:
            - TaskError: If it raises, lacks a part, has one too many, or one that is no finite number. The message \
                holds the problem's text.
        """
        try:
            parts = self.score(problem, completion)
        except Exception as error:  # whatever a user's scorer raises is reported with the problem that caused it
            raise self._error(f'raised {_describe(error)}', problem, completion) from error
        if not isinstance(parts, dict) or set(parts) != set(self.weights):
            raise self._error(f'scored {parts!r}, must score exactly {sorted(self.weights)}', problem, completion)
        for name, value in parts.items():
            try:
                finite = math.isfinite(value)
            except (TypeError, OverflowError):
                finite = False
            if not finite:
                raise self._error(f'scored {name} = {value!r}, must be a finite number', problem, completion)
        return {name: float(parts[name]) for name in self.weights}

    def _error(self, what: str, problem: Problem, completion: str) -> TaskError:
        return TaskError(f'{type(self).__name__} {what}; problem: {problem.prompt!r}; completion: {completion!r}')


def _describe(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f'{type(error).__name__}: {error} ({os.path.basename(frame.filename)}:{frame.lineno})'


def create_task(cfg: Dict) -> Task:
    """
    Overview:
        Build a registered task.
    Arguments:
        - cfg (:obj:`Dict`): ``type`` is the registered name, ``import_names`` the modules that register it, the rest \
            goes to the task's constructor.
    Raises:
        - ConfigError: If there is no such task, it refuses its arguments, or it has no problem.
    """
    args = dict(cfg)
    name = args.pop('type', None)
    import_module(args.pop('import_names', []))
    if name not in TASK_REGISTRY:
        raise ConfigError(f'env.task.type = {name!r}: unknown task; {nearest(str(name), TASK_REGISTRY)}')
    try:
        task = TASK_REGISTRY.get(name)(**args)
    except TypeError as error:
        raise ConfigError(f'env.task = {dict(cfg)!r}: {error}') from error
    if len(task) == 0:
        raise ConfigError(f'env.task = {dict(cfg)!r}: the task has no problem.')
    return task
