"""
Tasks of several turns: the model writes a turn, the task replies, and so on, until the task or a limit ends the
episode. ``Task`` is the case of one turn, which is scored and not answered.
"""
import copy
from abc import abstractmethod
from collections import namedtuple
from typing import Any, Dict, Hashable, List, NamedTuple, Optional, Sequence, Tuple

from ding_common import ConfigError, TaskError, describe

from .problem import NEW_DICT, Problem, Text, is_prompt, messages_of
from .task import Parts, Task
from .time_limit import time_limit

MOST_TURNS = 100  # of a demonstration


class Turn(NamedTuple):
    """
    Overview:
        A turn of the policy, in text.
    Shapes:
        - text (:obj:`str`): The text, without the end-of-sequence token. A stop string that ended the turn is in it
        - number (:obj:`int`): The number of the turn in its episode, 0 for the first
        - cut (:obj:`bool`): Whether a length limit ended it, so that it may be half a sentence or half a call
    """
    text: str
    number: int
    cut: bool


class Reply(namedtuple('Reply', 'text parts done anchor')):
    """
    Overview:
        What a task answers to a turn.
    Shapes:
        - text (:obj:`Union[str, List[Dict[str, str]]]`): What the policy reads next: text, which a chat template \
            makes a user message, or chat messages. Not read after the last turn
        - parts (:obj:`Dict[str, Optional[float]]`): Parts of the reward of this turn, keys of ``Task.weights``. A \
            part that is missing or None does not apply to this turn
        - done (:obj:`bool`): Whether the episode ends
        - anchor (:obj:`Optional[Hashable]`): The state in which the next turn is taken. With \
            ``policy.learn.advantage='anchor'``, rows of a group in equal states are compared. None: a state of its own
    """
    __slots__ = ()

    def __new__(
            cls, text: Text, parts: Parts = NEW_DICT, done: bool = False, anchor: Optional[Hashable] = None
    ) -> 'Reply':
        return super().__new__(cls, text, {} if parts is NEW_DICT else parts, done, anchor)


class MultiTurnTask(Task):
    """A source of conversations or games of several turns. The reward of an episode is the sum over its turns."""

    has_turns = True
    scores_batches = limits_each = False

    @abstractmethod
    def begin(self, problem: Problem, seed: int) -> Any:
        """
        Overview:
            The state of a new game.
        Arguments:
            - seed (:obj:`int`): Seed of everything random in the game. All rows of a group get the same one. In \
                evaluation it is a function of the problem's index.
        Returns:
            - state (:obj:`Any`): Plain data that can be copied with ``copy.deepcopy``. It belongs to one episode, so \
                ``respond`` may change it.
        """

    @abstractmethod
    def respond(self, problem: Problem, state: Any, turn: Turn) -> Reply:
        """
        Answer a turn. ``state`` is that of ``begin``, as earlier turns changed it. The text of the turn is data; never
        execute it. An episode whose task raises here is dropped, see ``policy.collect.collector.max_failed``.
        """

    def turn_limit(self, problem: Problem) -> Optional[int]:
        """Maximum number of turns of a problem, at most ``most_turns``. None: ``env.max_turns``."""
        return None

    def demonstration(self, problem: Problem, turns: Sequence[Tuple[str, str]] = ()) -> str:
        """The next turn of a right dialogue, after ``turns``, text and reply of each one so far."""
        raise NotImplementedError(f'{type(self).__name__} has no demonstrations')

    def dialogue(self, problem: Problem) -> List[Dict[str, str]]:
        """The prompt and all demonstrated turns with their replies, as chat messages."""
        messages, turns, state = problem.messages, [], self.checked_begin(problem, 0)
        for number in range(MOST_TURNS):
            try:
                text = self.demonstration(problem, turns)
                reply = self.checked_respond(problem, state, Turn(text, number, cut=False))
            except Exception as error:  # a user's function may raise anything
                raise ConfigError(f'env.task.demonstration raised {describe(error)}') from error
            messages.append(dict(role='assistant', content=text))
            if reply.done:
                return messages
            answer = Problem(reply.text)
            messages += answer.messages
            turns.append((text, answer.text))
        raise ConfigError(f'env.task.demonstration: the dialogue has not ended after {MOST_TURNS} turns.')

    @property
    def demonstrates(self) -> bool:
        return type(self).demonstration is not MultiTurnTask.demonstration

    def score(self, problem: Problem, completion: str) -> Parts:
        raise TypeError(f'{type(self).__name__} has several turns, which respond answers and rewards')

    def checked_begin(self, problem: Problem, seed: int) -> Any:
        """A copy of what ``begin`` returns, so that no episode can change another one's state."""
        try:
            return copy.deepcopy(self.begin(problem, seed))
        except (Exception, SystemExit) as error:  # a user's game may raise anything
            raise TaskError(
                f'{type(self).__name__}.begin raised {describe(error)}; problem: {problem.text!r:.200}'
            ) from error

    def checked_respond(self, problem: Problem, state: Any, turn: Turn) -> Reply:
        """
        Call ``respond``. Its reply gets every part of the reward, None for one that does not apply. Raises a
        ``TaskError``, which quotes problem and turn, if it raises, or returns anything but a ``Reply`` with text or
        messages, finite parts of ``weights`` and an anchor that can be hashed.
        """
        try:
            with time_limit(self.seconds):
                reply = self.respond(problem, state, turn)
        except (Exception, SystemExit) as error:
            raise self._error(f'raised {describe(error)}', problem, turn.text) from error
        if not isinstance(reply, Reply) or not is_prompt(reply.text) or not isinstance(reply.parts, dict):
            allowed = f"text or chat {messages_of(getattr(reply, 'text', None))}"
            raise self._error(f'replied {reply!r:.200}, must return a Reply with {allowed}', problem, turn.text)
        if set(reply.parts) - set(self.weights):
            told = f'rewarded {reply.parts!r:.200}, must reward only {sorted(self.weights)}'
            raise self._error(told, problem, turn.text)
        parts = self._checked_parts(reply.parts, 'rewarded', problem, turn.text)
        try:
            hash(reply.anchor)
        except Exception:
            raise self._error(f'replied with anchor = {reply.anchor!r:.200}, must be hashable', problem, turn.text)
        return reply._replace(parts=parts, done=bool(reply.done))
