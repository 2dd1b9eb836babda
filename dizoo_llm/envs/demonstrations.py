"""Right completions and dialogues of a task, as token ids, for learning from them."""
import copy
from typing import Dict, List, Optional, Tuple

import gymnasium

from ding_common import ConfigError, TaskError, check_not_async, describe, run_file


def demonstrated_turn(env: gymnasium.Env, config: str = '') -> List[int]:
    """Token ids of the turn that the task of a ``TokenEnv`` within an episode demonstrates next."""
    try:
        text = env.task.demonstration(*[env.problem, env.turns][:1 + env.has_turns])
    except Exception as error:  # a user's task may raise anything
        raise ConfigError(f'{config}env.task: demonstration raised {describe(error)}') from error
    return env.encode_answer(text)


class Demonstrations:
    """
    Token ids of the prompt of each training problem with its right completion and an end-of-sequence token, or with the
    dialogue that the task demonstrates. The labels are -100 where the environment writes.
    """

    def __init__(self, env: gymnasium.Env, answers: Optional[str] = None, config: str = '') -> None:
        """
        Of a ``TokenEnv``, or of a Python file whose ``answer(problem, index)`` gives the completions, for tasks of one
        turn. ``config`` is the dotted path of the sections with a dot at its end, for messages.
        """
        self._env, self._config, self._answer = env, config, None
        if answers is None:
            return
        key = f'{config}train.answers'
        self._answer = run_file(answers, key).get('answer')
        if not callable(self._answer):
            raise ConfigError(f'{key} = {answers!r}: must define a function answer.')
        check_not_async(self._answer, f'{key} = {answers!r}: answer')
        if env.has_turns:
            raise ConfigError(
                f'{key} = {answers!r}: not available for {type(env.task).__name__}, which has several turns. Implement '
                'its demonstration.'
            )

    def check(self, index: int) -> None:
        """Raise a ``ConfigError`` if the scorer does not reward a demonstration of the task."""
        if self._answer is not None:
            return
        if self._env.has_turns:
            _, reward = self.played(index)
            if reward <= 0:
                raise ConfigError(
                    f'{self._config}env.task: {type(self._env.task).__name__} gives its own demonstration of problem '
                    f'{index} the reward {reward:g}, must give more than 0.'
                )
            return
        problem = self._env.problems.checked_problem(index)
        text = self._env.task.demonstration(problem)
        scored, = self._env.scoring.scores([problem], [text])
        if isinstance(scored, TaskError):
            raise scored
        if self._env.scoring.reward(scored) <= 0:
            other = f', or set {self._config}train.answers' if self._config else ''
            raise ConfigError(
                f'{self._config}env.task: its scorer gives {scored} for its own demonstration {text!r:.200}, must give '
                f'more than 0. Implement Task.demonstration{other}.'
            )

    def __len__(self) -> int:
        return len(self._env.problems)

    def __getitem__(self, index: int) -> Dict[str, List[int]]:
        return self.played(index)[0]

    def played(self, index: int) -> Tuple[Dict[str, List[int]], float]:
        """What is demonstrated for a problem, and its reward; a completion is not scored."""
        env = copy.copy(self._env)
        obs, _ = env.reset(seed=index, options=dict(index=index, defer_score=True))
        ids, labels, total, done = obs[obs >= 0].tolist(), [], 0.0, False
        while not done:
            turn = demonstrated_turn(env, self._config) if self._answer is None else self._answered(env, index)
            labels += [-100] * (len(ids) - len(labels)) + turn
            ids += turn
            obs, reward, terminated, truncated, _ = env.step(turn)
            total, done = total + reward, terminated or truncated
            if not done:
                ids = obs[obs >= 0].tolist()
        return dict(input_ids=ids, labels=labels), total

    def _answered(self, env: gymnasium.Env, index: int) -> List[int]:
        key = f'{self._config}train.answers'
        try:
            text = self._answer(env.problem, index)
        except Exception as error:  # a user's function may raise anything
            raise ConfigError(f'{key}: answer(problem, {index}) raised {describe(error)}') from error
        if not isinstance(text, str):
            raise ConfigError(f'{key}: answer(problem, {index}) = {text!r:.200}: must be a string.')
        return env.encode_answer(text)
