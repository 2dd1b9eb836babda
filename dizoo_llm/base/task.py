"""Tasks of one turn, and the checks of what a user's task returns."""
import copy
import inspect
from abc import ABC, abstractmethod
from contextlib import nullcontext
from functools import partial
from typing import Any, Callable, ContextManager, Dict, List, Optional, Sequence, Tuple, Union

from ding_common import ConfigError, Rule, TaskError, check_not_async, describe, is_async, is_reward, nearest

from .awaited import Limits, await_all
from .problem import Problem, is_prompt, messages_of
from .time_limit import time_limit

Parts = Dict[str, Optional[float]]  # of the reward, by name
BATCH = 10  # time of a batch, relative to that of a score
# Names of the two arguments that every scorer gets.
PROBLEM, COMPLETION = ('problem', 'problems'), ('completion', 'completions')


class Task(ABC):
    """A source of problems and their scores, as text. It defines ``score``, ``score_batch``, or both."""

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
    # (int) How many coroutines of an ``async`` scorer run at once. Lower it for a server that refuses more.
    concurrency: int = 32
    # (int) How often a score of an ``async`` scorer is tried again after an error that may pass, see
    # ``dizoo_llm/base/awaited.py``. ``seconds`` then limits each attempt.
    retries: int = 3
    # (bool) Whether ``problem`` is a mere look-up, so that the prompts of all problems are measured at the start.
    listed: bool = False
    # (bool) Whether an episode has several turns, as those of ``MultiTurnTask``.
    has_turns: bool = False
    # (Optional[int]) The largest number of turns that the task allows a problem, which ``env.max_turns`` must reach.
    most_turns: Optional[int] = None
    # (Optional[str]) ``'module:class'`` of the environment, in place of ``TokenEnv``.
    environment: Optional[str] = None

    @abstractmethod
    def __len__(self) -> int:
        """Number of problems."""

    @abstractmethod
    def problem(self, index: int) -> Problem:
        """The problem at an index from 0 to ``len(self) - 1``; a pure function of the index."""

    def score(self, problem: Problem, completion: str) -> Parts:
        """
        Overview:
            Score a completion. The completion is data; never execute it. Scoring may be slow, and it may fail: a \
            completion that cannot be scored is dropped, see ``policy.collect.collector.max_failed``. The default is \
            ``score_batch`` with a batch of one. It may be ``async``: the scores of a batch are then awaited together.
        Arguments:
            - completion (:obj:`str`): The policy's text, without the prompt.
        Returns:
            - parts (:obj:`Dict[str, Optional[float]]`): For each key of ``weights`` a finite number, or None if the \
                part does not apply.
        """
        entries = as_list(self.score_batch([problem], [completion]))
        wrong = wrong_number(entries, 1)
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
            - completions (:obj:`List[str]`): The policy's texts, without the prompts. Their number varies.
        Returns:
            - scores (:obj:`List[Union[Dict[str, Optional[float]], Exception]]`): For each completion what ``score`` \
                returns, or an exception if this completion cannot be scored.
        """
        if not is_async(self.score):
            raise NotImplementedError(f'{type(self).__name__} must define score or score_batch')
        return await_all([partial(self.score, *row) for row in zip(problems, completions)], self.limits)

    @property
    def limits_each(self) -> bool:
        """Whether each score of a batch has a time limit of its own, and the batch none: if scores are awaited."""
        return is_async(self.score) and type(self).score_batch is Task.score_batch

    @property
    def limits(self) -> Limits:
        return Limits(self.concurrency, self.seconds, self.retries)

    @property
    def scores_batches(self) -> bool:
        """Whether the task defines ``score_batch``, or an ``async`` score."""
        return type(self).score_batch is not Task.score_batch or self.limits_each

    def feedback(self, problem: Problem, completion: str) -> Optional[str]:
        """What a scorer says of a completion besides its numbers, such as a test that failed, for a policy that teaches
        itself (``policy.teacher``); None for nothing. The completion is data, as in ``score``."""

    def token_rewards(self, problem: Problem, completion: str, tokens: List[str]) -> Optional[Sequence[float]]:
        """
        Overview:
            Rewards of single tokens beside those of ``score``, such as those of a process reward model. Their sum is \
            the part ``tokens`` of the reward, with the weight 1. Where advantages compare single tokens, each token \
            gets its own. For tasks of one turn. The completion is data, as in ``score``.
        Arguments:
            - tokens (:obj:`List[str]`): The text that each token adds to the completion. It is empty for the token \
                that ends it, and for a token that ends within a character.
        Returns:
            - rewards (:obj:`Optional[Sequence[float]]`): A finite number for each token; None if the part does not \
                apply.
        """

    @property
    def rewards_tokens(self) -> bool:
        """Whether the task defines ``token_rewards``."""
        return type(self).token_rewards is not Task.token_rewards

    def demonstration(self, problem: Problem) -> str:
        """A right completion for supervised learning: the reference answer in the format that the scorer expects."""
        return problem.answer

    @property
    def demonstrates(self) -> bool:
        """Whether ``demonstration`` has the form that the scorer expects. The default of ``Task`` may not have it."""
        return type(self).demonstration is not Task.demonstration

    def evaluation(self) -> 'Task':
        """The same task over the held-out problems; the task itself if it has none."""
        return self

    def checked_problem(self, index: int) -> Problem:
        """Call ``problem``. Raises a ``TaskError`` if it raises, or returns no ``Problem`` with a valid prompt."""
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

    def checked_score(self, problem: Problem, completion: str, cut: bool = False) -> Parts:
        """
        Call ``score``. Raises a ``TaskError``, which quotes the problem, if it raises, or a part is not valid. ``cut``:
        whether a length limit ended the completion, see ``must_end``.
        """
        try:
            with nullcontext() if self.limits_each else time_limit(self.seconds):
                if is_async(self.score):
                    parts, = Task.score_batch(self, [problem], [completion])
                else:
                    parts = self.score(problem, completion)
        except (Exception, SystemExit) as error:  # a user's scorer may raise anything; the error names the problem
            raise self._error(f'raised {describe(error)}', problem, completion) from error
        parts = self._checked(parts, problem, completion)
        if cut and self.must_end and parts[self.return_part] is not None:
            parts[self.return_part] = 0.0
        return parts

    def checked_scores(self, problems: Sequence[Problem], completions: Sequence[str]) -> List[Union[Parts, TaskError]]:
        """
        For each completion what ``checked_score`` returns, or the error that it raises. ``score_batch`` scores them if
        the task defines it; if that raises or does not return one entry for each completion, all entries are one error.
        """
        if not self.scores_batches:
            return [_or_error(self.checked_score, *row) for row in zip(problems, completions)]
        try:
            with nullcontext() if self.limits_each else self.batch_limit():
                entries = as_list(self.score_batch(list(problems), list(completions)))
            wrong = wrong_number(entries, len(completions))
        except (Exception, SystemExit) as error:  # as in checked_score
            wrong = f'raised {describe(error)} for {len(completions)} completions'
        if wrong is not None:
            return [TaskError(f'{type(self).__name__}.score_batch {wrong}')] * len(completions)
        return [_or_error(self._checked, *row) for row in zip(entries, problems, completions)]

    def checked_token_rewards(self, problem: Problem, completion: str, tokens: List[str]) -> Optional[List[float]]:
        """Call ``token_rewards``. Raises a ``TaskError`` if it raises, or does not give one number for each token."""
        try:
            with time_limit(self.seconds):
                found = as_list(self.token_rewards(problem, completion, tokens))
        except (Exception, SystemExit) as error:  # as in checked_score
            raise self._error(f'token_rewards raised {describe(error)}', problem, completion) from error
        if found is None:
            return None
        wrong = wrong_number(found, len(tokens))
        if wrong is None and not all(map(is_reward, found)):
            wrong = f'returned {found!r:.200}, must return finite numbers (float32)'
        if wrong is not None:
            raise self._error(f'token_rewards {wrong}', problem, completion)
        return [float(reward) for reward in found]

    def batch_limit(self) -> ContextManager:
        return time_limit(self.seconds and BATCH * self.seconds, f'{BATCH} times seconds of the task')

    def _checked(self, parts: Any, problem: Problem, completion: str) -> Parts:
        if isinstance(parts, BaseException):
            raise self._error(f'raised {describe(parts)}', problem, completion)
        if not isinstance(parts, dict) or set(parts) != set(self.weights):
            known = ', '.join(self.weights)
            raise self._error(
                f'scored {parts!r:.200}, must score exactly the parts that weights names ({known}), as a dict; a part '
                'of weight 0 is only reported', problem, completion
            )
        return self._checked_parts(parts, 'scored', problem, completion)

    def _checked_parts(self, parts: Parts, verb: str, problem: Problem, completion: str) -> Parts:
        """Parts of a reward as floats, and None for those that are missing. Raises a ``TaskError`` for others."""
        for name, value in parts.items():
            if value is not None and not is_reward(value):
                told = f'{verb} {name} = {value!r:.200}, must be a finite number (float32) or None'
                raise self._error(told, problem, completion)
        return {name: None if parts.get(name) is None else float(parts[name]) for name in self.weights}

    def _error(self, what: str, problem: Problem, completion: str) -> TaskError:
        """An error about a completion, which quotes it and its problem."""
        return TaskError(
            f'{type(self).__name__} {what}; problem: {problem.text!r:.200}; completion: {completion!r:.200}'
        )


class DividedTask(Task):
    """A task over a list of items, of which others are held out for evaluation."""

    _items: Sequence[Any] = ()
    _held_out: Optional[Sequence[Any]] = None  # None: evaluation uses the same items

    def __len__(self) -> int:
        return len(self._items)

    def evaluation(self) -> Task:
        if self._held_out is None or self._held_out is self._items:
            return self
        other = copy.copy(self)
        other._items = self._held_out
        return other


def as_list(entries: Any) -> Any:
    """The entries of an array or of a tensor, for example of a batch of scores, as a list; others unchanged."""
    return entries.tolist() if hasattr(entries, 'tolist') else entries


def wrong_number(entries: Any, number: int) -> Optional[str]:
    """Why entries are not one for each of so many completions; None if they are."""
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
    """Require ``score`` or ``score_batch``, their parameters in the right order, and no other method that is async."""
    where = f'env.task: {type(task).__name__}'
    if (type(task).score, type(task).score_batch) == (Task.score, Task.score_batch):
        raise ConfigError(f'{where} must define score or score_batch.')
    for name in ('score', 'score_batch'):
        names = [*inspect.signature(getattr(task, name)).parameters][:2]
        if names[:1] and names[0] in COMPLETION or names[1:] and names[1] in PROBLEM:
            told = ', '.join(names)
            raise ConfigError(f'{where}.{name}({told}): gets the problem first, then the completion. Swap them.')
    for name in ('problem', 'score_batch', 'token_rewards', 'demonstration', 'begin', 'respond'):
        check_not_async(getattr(task, name, None), f'{where}.{name}')
    if task.must_end and not task.has_turns and task.return_part not in task.weights:
        raise ConfigError(
            f'{where}.return_part = {task.return_part!r}: must be a part of the reward ({", ".join(task.weights)}), '
            'because must_end = True makes it 0 for a completion that the length limit cut.'
        )
    check_values(where, concurrency=(task.concurrency, Rule.integer(1)), retries=(task.retries, Rule.integer(0)))


def check_values(where: str = 'env.task', /, **arguments: Tuple[Any, Rule]) -> None:
    """Raise a ``ConfigError`` for the first argument, given with its rule, that breaks it."""
    for key, (value, rule) in arguments.items():
        if not rule.holds(value):
            raise ConfigError(f'{where}.{key} = {value!r}: must be {rule.allowed}.')


def check_choice(key: str, value: Any, allowed: Dict) -> None:
    """Raise a ``ConfigError`` for an argument of a task that is not one of the names allowed."""
    if value not in allowed:
        raise ConfigError(f'env.task.{key} = {value!r}: {nearest(str(value), allowed)}')


def check_return_part(name: Any, weights: Dict[str, float], where: str) -> None:
    """Raise a ``ConfigError`` if the part that evaluation reports is neither a part of the reward nor None."""
    if name is not None and name not in list(weights):
        raise ConfigError(f'{where} = {name!r}: must be a part of the reward ({", ".join(weights)}) or None.')
