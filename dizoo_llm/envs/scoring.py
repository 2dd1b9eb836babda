"""From the score of a task to reward and info, in one place for single scores and for batches."""
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from dizoo_llm.tasks import Task
from dizoo_llm.tasks.base import Parts, check_return_part, is_score
from dizoo_llm.tasks.multi_turn import total_parts
from ding_common import ConfigError, Rule, TaskError, nearest


class Ended(NamedTuple):
    """
    Overview:
        A completion that has ended, as its score needs it.
    Shapes:
        - index (:obj:`int`): Index of the problem. The problem itself stays in its process: it is a pure function of \
            the index, and its metadata may be large or impossible to pickle
        - completion (:obj:`str`): The text, without the end-of-sequence token
        - terminated (:obj:`bool`): Whether it ended with an end-of-sequence token
        - length (:obj:`int`): Number of tokens, including the end-of-sequence token
    """
    index: int
    completion: str
    terminated: bool
    length: int


class Scoring:
    """
    Overview:
        Pure functions from the score of a completion, its end and its length, or from the scores of turns, to the \
        reward and the info of a token environment.
    Interfaces:
        ``outcome``, ``reward``, ``not_finite``, ``episode``
    Property:
        - weights (:obj:`Dict[str, float]`): The parts of the reward and their weights, including ``overlong``.
        - return_part (:obj:`Optional[str]`): The part that evaluation reports; None: the reward.
    """

    def __init__(
            self,
            task: Task,
            max_new_tokens: int,
            overlong_buffer: Optional[int],
            overlong_weight: float,
            reward_weights: Dict[str, float] = {},
            return_part: Optional[str] = None,
    ) -> None:
        """
        Arguments:
            - task (:obj:`Task`): Names the parts, their weights, ``return_part`` and ``must_end``.
            - max_new_tokens, overlong_buffer, overlong_weight, reward_weights, return_part: See ``TokenEnv``.
        Raises:
            - ConfigError: If the buffer is longer than a completion, or a weight or ``return_part`` is for a part \
                that does not exist.
        """
        self._task = task
        self._max_new_tokens = max_new_tokens
        self._overlong_buffer = overlong_buffer
        if overlong_buffer is not None and not 0 < overlong_buffer <= max_new_tokens:
            raise ConfigError(
                f'env.overlong_buffer = {overlong_buffer}: must be from 1 to env.max_new_tokens = {max_new_tokens}.'
            )
        self.weights = dict(task.weights)
        if overlong_buffer is not None:
            self.weights['overlong'] = overlong_weight
        for name, value in reward_weights.items():
            if name not in self.weights:
                raise ConfigError(
                    f'env.reward_weights.{name} = {value!r}: the reward has no such part; {nearest(name, self.weights)}'
                )
            if not Rule.number().holds(value):
                raise ConfigError(f'env.reward_weights.{name} = {value!r}: must be {Rule.number().allowed}.')
            self.weights[name] = float(value)
        check_return_part(return_part, self.weights, 'env.return_part')
        self.return_part = task.return_part if return_part is None else return_part

    def outcome(self, scored: Union[Parts, TaskError], ended: Ended) -> Tuple[float, Dict[str, Any]]:
        """
        Overview:
            Reward and info of a completion.
        Arguments:
            - scored (:obj:`Union[Dict[str, Optional[float]], TaskError]`): See ``Task.checked_scores``. An error \
                drops this row only; the workers count failures.
            - ended (:obj:`Ended`): The completion.
        Returns:
            - reward (:obj:`float`): Weighted sum of the parts.
            - info (:obj:`Dict[str, Any]`): ``reward_parts``, ``failed`` and ``return``, see ``TokenEnv.step``.
        """
        failed = scored.message if isinstance(scored, TaskError) else None
        parts = dict(scored) if failed is None else dict.fromkeys(self._task.weights)
        return_part = self._task.return_part
        if self._task.must_end and not ended.terminated and parts[return_part] is not None:
            parts[return_part] = 0.0
        if self._overlong_buffer is not None:
            begins = self._max_new_tokens - self._overlong_buffer
            length = ended.length if ended.terminated else self._max_new_tokens
            parts['overlong'] = -max(length - begins, 0) / self._overlong_buffer
        info = self._info(parts, failed)
        return self.reward(info['reward_parts']), info

    def reward(self, parts: Parts) -> float:
        """Weighted sum of the parts that apply."""
        return float(sum(self.weights[name] * value for name, value in parts.items() if value is not None))

    def not_finite(self, parts: Parts) -> Optional[str]:
        """Why parts that are numbers make no reward: it, or one of them, is not finite in float32. None if they do."""
        reward = self.reward(parts)
        if is_score(reward) and all(map(is_score, parts.values())):
            return None
        terms = ' + '.join(f'{self.weights[k]:g} x {k} = {value:g}' for k, value in parts.items() if value is not None)
        return f'the reward is {reward:g} ({terms}), must be a finite number (float32)'

    def episode(self, turns: List[Parts], failed: Optional[str]) -> Dict[str, Any]:
        """
        Overview:
            Info of an episode of several turns, as in ``outcome``.
        Arguments:
            - turns (:obj:`List[Dict[str, Optional[float]]]`): Parts of the reward of each turn.
            - failed (:obj:`Optional[str]`): Why the episode cannot be scored, or None.
        """
        return self._info(total_parts(turns) if failed is None else dict.fromkeys(self._task.weights), failed)

    def _info(self, parts: Parts, failed: Optional[str]) -> Dict[str, Any]:
        wrong = self.not_finite(parts)
        if wrong is not None:
            parts, failed = dict.fromkeys(parts), failed or wrong
        value = self.reward(parts) if self.return_part is None else parts[self.return_part] or 0.0
        return {'reward_parts': parts, 'failed': failed, 'return': value}
