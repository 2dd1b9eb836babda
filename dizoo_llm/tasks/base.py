import math
from abc import ABC, abstractmethod
from typing import Any, Dict, List, NamedTuple, Optional, Union

from ding.utils import import_module
from ding.utils.registry import Registry

from ding_common import ConfigError, Rule, TaskError, check_arguments, describe, nearest

TASK_REGISTRY = Registry()


class Problem(NamedTuple):
    """
    Overview:
        One problem of a task, in text.
    Shapes:
        - prompt (:obj:`Union[str, List[Dict[str, str]]]`): Text, or chat messages with ``role`` and ``content``
        - answer (:obj:`str`): What a right completion says, for scorers that compare
        - metadata (:obj:`Dict[str, Any]`): Whatever the scorer needs; ``kind`` is what evaluation counts by
    """
    prompt: Union[str, List[Dict[str, str]]]
    answer: str = ''
    metadata: Dict[str, Any] = {}

    @property
    def text(self) -> str:
        """The prompt to be shown: of chat messages, their contents by role."""
        if isinstance(self.prompt, str):
            return self.prompt
        return '\n'.join(f"{message['role']}: {message['content']}" for message in self.prompt)


class Task(ABC):
    """
    Overview:
        Where problems and scores come from. A task speaks text and knows neither tokens nor models.
    Interfaces:
        ``__len__``, ``problem``, ``score``, ``demonstration``, ``evaluation``
    Property:
        ``weights``, ``return_part``, ``words``, ``chars``
    """

    # (Dict[str, float]) The parts that ``score`` returns, and their weights in the reward.
    weights: Dict[str, float] = {}
    # (Optional[str]) The part that is the episode's return in evaluation; None takes the reward.
    return_part: Optional[str] = None
    # (Optional[List[str]]) The words that prompts and answers are made of, for a tokenizer made here.
    words: Optional[List[str]] = None
    # (Optional[str]) The characters that they are made of, for a tokenizer of characters made here.
    chars: Optional[str] = None

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
    def score(self, problem: Problem, completion: str) -> Dict[str, Optional[float]]:
        """
        Overview:
            Score a completion, which is data: it is never evaluated. It may be slow, and it may fail: a completion \
            that cannot be scored costs its own row, see ``policy.collect.collector.max_failed``.
        Arguments:
            - problem (:obj:`Problem`): What was asked.
            - completion (:obj:`str`): What the policy wrote, without the prompt.
        Returns:
            - parts (:obj:`Dict[str, Optional[float]]`): For each key of ``weights`` a finite number, or None where \
                the part does not apply.
        """

    def demonstration(self, problem: Problem) -> str:
        """
        Overview:
            A completion that is right, for supervised learning: the reference answer, as the scorer wants it written.
        Arguments:
            - problem (:obj:`Problem`): What was asked.
        """
        return problem.answer

    def evaluation(self) -> 'Task':
        """
        Overview:
            The same task over the problems that are held out for evaluation; itself if it holds none out.
        """
        return self

    def checked_problem(self, index: int) -> Problem:
        """
        Overview:
            ``problem``, held to what it promises.
        Raises:
            - TaskError: If it raises, or gives something else than a ``Problem`` of text or messages.
        """
        try:
            problem = self.problem(index)
        except (Exception, SystemExit) as error:  # as in checked_score
            raise TaskError(f'{type(self).__name__} raised {describe(error)} for problem {index}') from error
        if not isinstance(problem, Problem) or not is_prompt(problem.prompt):
            raise TaskError(
                f'{type(self).__name__} gave {problem!r:.200} for problem {index}, must give a Problem whose prompt is '
                'text or messages with role and content'
            )
        return problem

    def checked_score(self, problem: Problem, completion: str) -> Dict[str, Optional[float]]:
        """
        Overview:
            ``score``, held to what it promises.
        Raises:
            - TaskError: If it raises, lacks a part, has one too many, or one that is no finite number. The message \
                holds the problem's text.
        """
        try:
            parts = self.score(problem, completion)
        except (Exception, SystemExit) as error:  # whatever a user's scorer raises is reported with its problem
            raise self._error(f'raised {describe(error)}', problem, completion) from error
        if not isinstance(parts, dict) or set(parts) != set(self.weights):
            raise self._error(f'scored {parts!r:.200}, must score exactly {sorted(self.weights)}', problem, completion)
        for name, value in parts.items():
            try:
                good = value is None or math.isfinite(value)
            except Exception:  # a tensor, an array, a text
                good = False
            if not good:
                raise self._error(
                    f'scored {name} = {value!r:.200}, must be a finite number or None', problem, completion
                )
        return {name: None if parts[name] is None else float(parts[name]) for name in self.weights}

    def _error(self, what: str, problem: Problem, completion: str) -> TaskError:
        return TaskError(
            f'{type(self).__name__} {what}; problem: {problem.text!r:.200}; completion: {completion!r:.200}'
        )


def is_prompt(prompt: Any) -> bool:
    """
    Overview:
        Whether it is text, or chat messages with role and content.
    """
    return isinstance(prompt, str) or isinstance(prompt, list) and len(prompt) > 0 and all(
        isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ('role', 'content'))
        for message in prompt
    )


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
    name, modules = args.pop('type', None), args.pop('import_names', [])
    if not Rule.modules().holds(modules):
        raise ConfigError(f'env.task.import_names = {modules!r}: must be {Rule.modules().allowed}.')
    import_module(modules)
    if not Rule.registered(TASK_REGISTRY).holds(name):
        raise ConfigError(f'env.task.type = {name!r}: unknown task; {nearest(name, TASK_REGISTRY)}')
    check_arguments(args, TASK_REGISTRY.get(name), 'env.task')
    try:
        task = TASK_REGISTRY.get(name)(**args)
    except TypeError as error:
        raise ConfigError(f'env.task = {dict(cfg)!r}: {error}') from error
    for name, part in (('training', task), ('evaluation', task.evaluation())):
        if len(part) == 0:
            raise ConfigError(f'env.task = {dict(cfg)!r}: the task has no problem for {name}.')
    return task
