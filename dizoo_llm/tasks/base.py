from abc import ABC, abstractmethod
from decimal import Decimal
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Union

import numpy as np
from ding.utils import import_module
from ding.utils.registry import Registry

from ding_common import ConfigError, Rule, TaskError, check_arguments, check_not_async, describe, is_reward, nearest

from .signature import check_order
from .time_limit import time_limit


class TaskRegistry(Registry):
    """
    Overview:
        Tasks by name. A class that is defined again, as by a notebook's cell that runs twice, replaces the former.
    """

    def register(self, module_name: Optional[str] = None, module: Any = None, force_overwrite: bool = False) -> Any:
        """
        Overview:
            As in DI-engine's ``Registry``.
        Raises:
            - ConfigError: If another class has the name.
        """
        if module is None:
            return partial(self._add, module_name, force_overwrite)
        self._add(module_name, force_overwrite, module)

    def _add(self, name: Optional[str], force_overwrite: bool, kind: Any) -> Any:
        name = kind.__name__ if name is None else name
        former = self[name] if name in self else kind
        if not force_overwrite and (former.__module__, former.__qualname__) != (kind.__module__, kind.__qualname__):
            raise ConfigError(
                f'TASK_REGISTRY.register({name!r}): {former.__module__}.{former.__qualname__} has this name. Choose '
                'another, or set force_overwrite=True to replace it.'
            )
        super().register(name, kind, force_overwrite=True)
        return kind


TASK_REGISTRY = TaskRegistry()
ASSISTANT = ('assistant', 'model', 'chatbot')  # names that chat templates have for the role that answers

Parts = Dict[str, Optional[float]]  # of the reward, by name
BATCH = 10  # time of a batch, relative to that of a score
NEW_DICT: Dict = {}  # a default that stands for a new dict, so that two problems never share theirs


class _Problem(NamedTuple):
    prompt: Union[str, List[Dict[str, str]]]
    answer: str
    metadata: Dict[str, Any]


class Problem(_Problem):
    """
    Overview:
        One problem of a task, in text.
    Shapes:
        - prompt (:obj:`Union[str, List[Dict[str, str]]]`): Text, or chat messages with ``role`` and ``content``
        - answer (:obj:`str`): The reference answer, for scorers that compare
        - metadata (:obj:`Dict[str, Any]`): Anything the scorer needs; evaluation groups results by ``kind``
    """
    __slots__ = ()

    def __new__(
            cls,
            prompt: Union[str, List[Dict[str, str]]],
            answer: str = '',
            metadata: Dict[str, Any] = NEW_DICT
    ) -> 'Problem':
        return super().__new__(cls, prompt, answer, {} if metadata is NEW_DICT else metadata)

    @property
    def text(self) -> str:
        """The prompt as text for display; chat messages become lines of role and content."""
        if isinstance(self.prompt, str):
            return self.prompt
        return '\n'.join(f"{message['role']}: {message['content']}" for message in self.prompt)

    @property
    def messages(self) -> List[Dict[str, str]]:
        """The prompt as chat messages; text becomes a message of the user."""
        return [dict(role='user', content=self.prompt)] if isinstance(self.prompt, str) else list(self.prompt)

    def after(self, examples: List[Dict[str, str]]) -> 'Problem':
        """The problem with example messages before its prompt; without examples the same one."""
        return self._replace(prompt=[*examples, *self.messages]) if examples else self


class Task(ABC):
    """
    Overview:
        A source of problems and their scores. A task works on text and depends on neither tokens nor models. It \
        defines ``score``, ``score_batch``, or both.
    Interfaces:
        ``__len__``, ``problem``, ``score``, ``score_batch``, ``demonstration``, ``evaluation``
    Property:
        ``weights``, ``return_part``, ``must_end``, ``words``, ``chars``, ``tools``, ``seconds``, ``listed``,
        ``demonstrates``
    """

    # (Dict[str, float]) The parts that the scorer returns, and their weights in the reward.
    weights: Dict[str, float] = {}
    # (Optional[str]) The part that evaluation reports as the episode's return; None uses the reward.
    return_part: Optional[str] = None
    # (bool) Whether ``return_part`` is 0 for a completion that the length limit cut. The scorer does not see the end.
    must_end: bool = False
    # (Optional[List[str]]) All words of prompts and answers, from which a word tokenizer can be built.
    words: Optional[List[str]] = None
    # (Optional[str]) All characters of prompts and answers, from which a character tokenizer can be built.
    chars: Optional[str] = None
    # (List[Dict[str, Any]]) Functions that the model may call, as JSON schemas for a chat template.
    tools: List[Dict[str, Any]] = []
    # (Optional[float]) Time limit of a score or a reply. What takes longer cannot be scored. ``score_batch`` has ten
    # times as long. None: no limit. Raise it for a scorer that waits for another machine or loads a model.
    seconds: Optional[float] = 60.0
    # (bool) Whether ``problem`` is a mere look-up, so that the prompts of all problems are measured at the start.
    listed: bool = False

    @abstractmethod
    def __len__(self) -> int:
        """Number of problems."""

    @abstractmethod
    def problem(self, index: int) -> Problem:
        """
        Overview:
            The problem at an index; a pure function of the index.
        Arguments:
            - index (:obj:`int`): From 0 to ``len(self) - 1``.
        """

    def score(self, problem: Problem, completion: str) -> Parts:
        """
        Overview:
            Score a completion. The completion is data; never execute it. Scoring may be slow, and it may fail: a \
            completion that cannot be scored is dropped, see ``policy.collect.collector.max_failed``. The default is \
            ``score_batch`` with a batch of one.
        Arguments:
            - problem (:obj:`Problem`): The problem.
            - completion (:obj:`str`): The policy's text, without the prompt.
        Returns:
            - parts (:obj:`Dict[str, Optional[float]]`): For each key of ``weights`` a finite number, or None if the \
                part does not apply.
        """
        entries = as_list(self.score_batch([problem], [completion]))
        wrong = _wrong_number(entries, 1)
        if wrong is not None:
            raise ValueError(f'score_batch {wrong}')
        if isinstance(entries[0], BaseException):
            raise entries[0]
        return entries[0]

    def score_batch(self, problems: List[Problem], completions: List[str]) -> List[Union[Parts, Exception]]:
        """
        Overview:
            Score many completions at once. A task that defines it is scored once a collect, in the process that \
            learns, and not in the environments: see ``docs/tutorials/own_task.md``. If it raises, no completion of \
            the batch is scored.
        Arguments:
            - problems (:obj:`List[Problem]`): The problem of each completion.
            - completions (:obj:`List[str]`): The policy's texts, without the prompts. Their number varies.
        Returns:
            - scores (:obj:`List[Union[Dict[str, Optional[float]], Exception]]`): For each completion what ``score`` \
                returns, or an exception if this completion cannot be scored.
        """
        raise NotImplementedError(f'{type(self).__name__} must define score or score_batch')

    @property
    def scores_batches(self) -> bool:
        """Whether the task defines ``score_batch``."""
        return type(self).score_batch is not Task.score_batch

    def demonstration(self, problem: Problem) -> str:
        """
        Overview:
            A right completion for supervised learning: the reference answer in the format that the scorer expects.
        Arguments:
            - problem (:obj:`Problem`): The problem.
        """
        return problem.answer

    @property
    def demonstrates(self) -> bool:
        """Whether ``demonstration`` has the form that the scorer expects. The default of ``Task`` may not have it."""
        return type(self).demonstration is not Task.demonstration

    def evaluation(self) -> 'Task':
        """The same task over the held-out problems; the task itself if it has none."""
        return self

    def checked_problem(self, index: int) -> Problem:
        """
        Overview:
            Call ``problem`` and validate its result.
        Raises:
            - TaskError: If it raises, or returns anything but a ``Problem`` whose prompt is text or chat messages.
        """
        try:
            problem = self.problem(index)
        except (Exception, SystemExit) as error:  # as in checked_score
            raise TaskError(f'{type(self).__name__} raised {describe(error)} for problem {index}') from error
        if not isinstance(problem, Problem) or not is_prompt(problem.prompt):
            raise TaskError(
                f'{type(self).__name__} returned {problem!r:.200} for problem {index}, must return a Problem whose '
                f"prompt is text or {messages_of(getattr(problem, 'prompt', None))}"
            )
        return problem

    def checked_score(self, problem: Problem, completion: str) -> Parts:
        """
        Overview:
            Call ``score`` and validate its result.
        Raises:
            - TaskError: If it raises, a part is missing, unknown, or neither a finite number nor None. The message \
                quotes the problem's text.
        """
        try:
            with time_limit(self.seconds):
                parts = self.score(problem, completion)
        except (Exception, SystemExit) as error:  # a user's scorer may raise anything; the error names the problem
            raise self._error(f'raised {describe(error)}', problem, completion) from error
        return self._checked(parts, problem, completion)

    def checked_scores(self, problems: Sequence[Problem], completions: Sequence[str]) -> List[Union[Parts, TaskError]]:
        """
        Overview:
            Score completions and validate the results, with ``score_batch`` if the task defines it.
        Returns:
            - scores (:obj:`List[Union[Dict[str, Optional[float]], TaskError]]`): For each completion what \
                ``checked_score`` returns, or the error that it raises. If ``score_batch`` raises or does not return \
                one entry for each completion, all entries are one error.
        """
        if not self.scores_batches:
            return [_or_error(self.checked_score, *row) for row in zip(problems, completions)]
        try:
            with time_limit(self.seconds and BATCH * self.seconds, f'{BATCH} times seconds of the task'):
                entries = as_list(self.score_batch(list(problems), list(completions)))
            wrong = _wrong_number(entries, len(completions))
        except (Exception, SystemExit) as error:  # as in checked_score
            wrong = f'raised {describe(error)} for {len(completions)} completions'
        if wrong is not None:
            return [TaskError(f'{type(self).__name__}.score_batch {wrong}')] * len(completions)
        return [_or_error(self._checked, *row) for row in zip(entries, problems, completions)]

    def _checked(self, parts: Any, problem: Problem, completion: str) -> Parts:
        if isinstance(parts, BaseException):
            raise self._error(f'raised {describe(parts)}', problem, completion)
        if not isinstance(parts, dict) or set(parts) != set(self.weights):
            known = ', '.join(self.weights)
            raise self._error(
                f'scored {parts!r:.200}, must score exactly the parts that weights names ({known}), as a dict; a part '
                'of weight 0 is only reported', problem, completion
            )
        for name, value in parts.items():
            if not is_score(value):
                raise self._error(
                    f'scored {name} = {value!r:.200}, must be a finite number (float32) or None', problem, completion
                )
        return {name: None if parts[name] is None else float(parts[name]) for name in self.weights}

    def _error(self, what: str, problem: Problem, completion: str) -> TaskError:
        return TaskError(
            f'{type(self).__name__} {what}; problem: {problem.text!r:.200}; completion: {completion!r:.200}'
        )


def as_list(entries: Any) -> Any:
    """The entries of an array or of a tensor, for example of a batch of scores, as a list; others unchanged."""
    return entries.tolist() if hasattr(entries, 'tolist') else entries


def _wrong_number(entries: Any, number: int) -> Optional[str]:
    """What is wrong with the entries of ``score_batch`` as a list of one for each completion, or None."""
    if not isinstance(entries, (list, tuple)):
        return f'returned {entries!r:.80}, must return a list of {number}'
    if len(entries) != number:
        return f'returned {len(entries)} entries, must return a list of {number}'
    return None


def _or_error(check: Callable[..., Parts], *args: Any) -> Union[Parts, TaskError]:
    try:
        return check(*args)
    except TaskError as error:
        return error


def check_scorer(task: Task) -> None:
    """
    Overview:
        Require that a task can score completions.
    Raises:
        - ConfigError: If it defines neither ``score`` nor ``score_batch``, or their parameters in another order, or \
            a method by ``async def``.
    """
    if (type(task).score, type(task).score_batch) == (Task.score, Task.score_batch):
        raise ConfigError(f'env.task: {type(task).__name__} must define score or score_batch.')
    for name in ('score', 'score_batch'):
        check_order(getattr(task, name), f'env.task: {type(task).__name__}.{name}')
    for name in ('problem', 'score', 'score_batch', 'demonstration', 'begin', 'respond'):
        check_not_async(getattr(task, name, None), f'env.task: {type(task).__name__}.{name}')


def is_score(value: Any) -> bool:
    """Whether a value is a reward, or None."""
    return value is None or is_reward(value)


def check_return_part(name: Any, weights: Dict[str, float], where: str) -> None:
    """
    Overview:
        Require that the part which evaluation reports is a part of the reward, or None.
    Raises:
        - ConfigError: If it is another one.
    """
    if name is not None and name not in list(weights):
        raise ConfigError(f'{where} = {name!r}: must be a part of the reward ({", ".join(weights)}) or None.')


def as_text(value: Any) -> str:
    """A value as text, with numbers as people write them: 42.0 and Decimal('42.00') are 42, and 1e-7 is 0.0000001."""
    if not isinstance(value, (float, np.floating, Decimal)):
        return str(value)
    number = Decimal(str(value))
    if not number.is_finite() or abs(number.adjusted()) > 20:
        return str(value)
    text = f'{number:f}'
    text = text.rstrip('0').rstrip('.') if '.' in text else text
    return '0' if text == '-0' else text


def is_missing(value: Any) -> bool:
    """Whether a value is NaN, or what stands for it in tables of dates or of nullable columns."""
    return not isinstance(value, str) and str(value).lower() in ('nan', 'snan', 'nat', '<na>')


def is_prompt(prompt: Any) -> bool:
    """Whether a value is text, or a non-empty list of chat messages with role and content."""
    return isinstance(prompt, str) or isinstance(prompt, list) and len(prompt) > 0 and all(
        isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ('role', 'content'))
        for message in prompt
    )


def final_answer(prompt: Any) -> Optional[str]:
    """
    Overview:
        The content of the assistant's turn with which a prompt ends, None if it ends otherwise. A policy must not \
        read it: a chat template would open a second turn of the assistant after it.
    """
    if is_prompt(prompt) and not isinstance(prompt, str) and prompt[-1]['role'].lower() in ASSISTANT:
        return prompt[-1]['content']
    return None


def check_unanswered(prompt: Any, where: str) -> None:
    """
    Overview:
        Require that a prompt does not end with an answer.
    Raises:
        - ConfigError: If it does. ``where`` is the beginning of the message.
    """
    answer = final_answer(prompt)
    if answer is not None:
        raise ConfigError(
            f"{where}: the messages end with the assistant's turn {answer!r:.80}, which the policy would read as part "
            'of its prompt. Remove this turn, or make it the answer.'
        )


def messages_of(prompt: Any) -> str:
    """What messages must be, for an error about a prompt: how to write its content if that is a list of parts."""
    for i, message in enumerate(prompt if isinstance(prompt, list) else ()):
        if isinstance(message, dict) and isinstance(message.get('content'), list):
            return f'messages whose content is text: that of message {i} is a list of parts; join their texts'
    return 'messages with role and content'


def create_task(cfg: Dict) -> Task:
    """
    Overview:
        Build a registered task.
    Arguments:
        - cfg (:obj:`Dict`): ``type`` is the registered name, ``import_names`` lists the modules that register it, \
            and all other keys are arguments of the task's constructor.
    Raises:
        - ConfigError: If the task is unknown, rejects its arguments, cannot score completions, or has no problem for \
            training or evaluation.
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
    check_scorer(task)
    for name, part in (('training', task), ('evaluation', task.evaluation())):
        if len(part) == 0:
            raise ConfigError(f'env.task = {dict(cfg)!r}: the task has no problem for {name}.')
    return task
