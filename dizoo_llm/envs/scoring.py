"""From completions and turns to reward and info, in one place for single scores and for batches."""
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from ding_common import ConfigError, Rule, TaskError, describe, is_reward, nearest
from dizoo_llm.base import Parts, Problem, Task
from dizoo_llm.base.task import BATCH, check_return_part
from dizoo_llm.base.time_limit import time_limit
from dizoo_llm.models.reward_model import KEY, RewardModel

from .fitting import Problems

TOKENS = 'tokens'  # the part of the reward that is the sum of ``Task.token_rewards``


class Ended(NamedTuple):
    """
    A completion that has ended, as its score needs it. Its problem is a pure function of the index, and its metadata
    may be large or impossible to pickle.
    """
    index: int  # of the problem
    completion: str  # without the end-of-sequence token
    terminated: bool  # whether it ended with an end-of-sequence token
    length: int  # number of tokens, including the end-of-sequence token
    token_rewards: Union[List[float], str, None] = None  # see ``Task.token_rewards``; or why there are none


class Scoring:
    """
    Scores completions by a task and by reward models, and makes reward and info from scores of completions or turns.
    ``weights`` are those of all parts, and ``in_batches`` tells whether many completions are better scored at once.
    """

    def __init__(self, task: Task, options: Dict[str, Any], evaluation: bool) -> None:
        self._task = task
        self._max_new_tokens, self._overlong_buffer = options['max_new_tokens'], options['overlong_buffer']
        self._models = [RewardModel(cfg, f'{KEY}[{i}]') for i, cfg in enumerate(options['reward_models'])]
        self.weights = dict(task.weights)
        for model in self._models:
            model.whiten = model.whiten and not evaluation
            if model.name in self.weights:
                raise ConfigError(
                    f'{KEY}: the name {model.name!r} occurs twice among the parts of the reward. Set name to another '
                    'one.'
                )
            self.weights[model.name] = model.weight
        self._scored = list(self.weights)
        if task.rewards_tokens:
            if TOKENS in self.weights:
                raise ConfigError(
                    f'env.task: {type(task).__name__} has token_rewards, whose sum is the part {TOKENS!r} of the '
                    'reward, and another part of this name. Rename it.'
                )
            self.weights[TOKENS] = 1.0
        if self._overlong_buffer is not None:
            if self._overlong_buffer > self._max_new_tokens:
                raise ConfigError(
                    f'env.overlong_buffer = {self._overlong_buffer}: must be from 1 to env.max_new_tokens = '
                    f'{self._max_new_tokens}.'
                )
            self.weights['overlong'] = options['overlong_weight']
        for name, value in options['reward_weights'].items():
            if name not in self.weights:
                raise ConfigError(
                    f'env.reward_weights.{name} = {value!r}: the reward has no such part; {nearest(name, self.weights)}'
                )
            if not Rule.number().holds(value):
                raise ConfigError(f'env.reward_weights.{name} = {value!r}: must be {Rule.number().allowed}.')
            self.weights[name] = float(value)
        of_task = options['return_part'] is None
        self.return_part = task.return_part if of_task else options['return_part']
        key = f'env.task: {type(task).__name__}.return_part' if of_task else 'env.return_part'
        check_return_part(self.return_part, self.weights, key)
        self.in_batches = task.scores_batches or bool(self._models)

    def score(self, problem: Problem, completion: str) -> Union[Parts, TaskError]:
        """The parts of one completion, or why it cannot be scored."""
        for model in self._models:
            if model.whiten:
                return TaskError(
                    f'{KEY}: whiten = True of {model.name!r} needs several completions, and this collector scores one '
                    'at a time. Use the collector group, or set whiten to False.'
                )
        if self._models:
            return self.scores([problem], [completion])[0]
        try:
            return self._task.checked_score(problem, completion)
        except TaskError as error:
            return error

    def scores(self, problems: Sequence[Problem], completions: Sequence[str]) -> List[Union[Parts, TaskError]]:
        """What ``score`` gives for each completion. A model reads all of them together, in this process."""
        found = self._task.checked_scores(problems, completions)
        for model in self._models:
            seconds = self._task.seconds and BATCH * self._task.seconds
            try:
                with time_limit(seconds, f'{BATCH} times seconds of the task'):
                    values = model.scores(problems, completions)
            except (Exception, SystemExit) as error:  # a model may raise anything, such as out of memory
                told = f'reward model {model.name!r} raised {describe(error)} for {len(completions)} completions'
                values = [TaskError(told)] * len(completions)
            for i, value in enumerate(values):
                if isinstance(found[i], dict) and isinstance(value, Exception):
                    told = f'problem: {problems[i].text!r:.200}; completion: {completions[i]!r:.200}'
                    found[i] = TaskError(f'{value}; {told}')
                elif isinstance(found[i], dict):
                    found[i] = {**found[i], model.name: value}
        return found

    def outcome(self, scored: Union[Parts, TaskError], ended: Ended) -> Tuple[float, Dict[str, Any]]:
        """
        Reward and info of a completion: ``reward_parts``, ``failed`` and ``return``, see ``TokenEnv.step``. An error in
        place of its parts drops this row only.
        """
        failed = scored.message if isinstance(scored, TaskError) else None
        of_tokens = ended.token_rewards
        if isinstance(of_tokens, str):
            failed, of_tokens = failed or of_tokens, None
        parts = dict(scored) if failed is None else dict.fromkeys(self._scored)
        return_part = self._task.return_part
        if self._task.must_end and not ended.terminated and parts[return_part] is not None:
            parts[return_part] = 0.0
        if self._overlong_buffer is not None:
            begins = self._max_new_tokens - self._overlong_buffer
            length = ended.length if ended.terminated else self._max_new_tokens
            parts['overlong'] = -max(length - begins, 0) / self._overlong_buffer
        if TOKENS in self.weights:
            parts[TOKENS] = None if failed is not None or of_tokens is None else sum(of_tokens)
        info = self._info(parts, failed)
        if of_tokens is not None and info['failed'] is None:
            info['token_rewards'] = [self.weights[TOKENS] * reward for reward in of_tokens]
        return self.reward(info['reward_parts']), info

    def outcomes(self, problems: Problems, rows: Sequence[Ended]) -> List[Tuple[float, Dict[str, Any]]]:
        """``outcome`` of completions, scored with one call."""
        known = {i: problems.checked_problem(i) for i in dict.fromkeys(row.index for row in rows)}
        scores = self.scores([known[row.index] for row in rows], [row.completion for row in rows])
        return list(map(self.outcome, scores, rows))

    def reward(self, parts: Parts) -> float:
        return float(sum(self.weights[name] * value for name, value in parts.items() if value is not None))

    def not_finite(self, parts: Parts) -> Optional[str]:
        """Why parts that are numbers make no reward: it, or one of them, is not finite in float32. None if they do."""
        reward, known = self.reward(parts), {name: value for name, value in parts.items() if value is not None}
        if is_reward(reward) and all(map(is_reward, known.values())):
            return None
        terms = ' + '.join(f'{self.weights[name]:g} x {name} = {value:g}' for name, value in known.items())
        return f'the reward is {reward:g} ({terms}), must be a finite number (float32)'

    def episode(self, turns: List[Parts], failed: Optional[str]) -> Dict[str, Any]:
        """Info of an episode, as in ``outcome``: the sum of each part over its turns, None if it applies to none."""
        sums = dict.fromkeys(self._scored)
        for parts in turns if failed is None else ():
            for name, value in parts.items():
                sums[name] = sums[name] if value is None else (sums[name] or 0.) + value
        return self._info(sums, failed)

    def _info(self, parts: Parts, failed: Optional[str]) -> Dict[str, Any]:
        wrong = self.not_finite(parts)
        if wrong is not None:
            parts, failed = dict.fromkeys(parts), failed or wrong
        value = self.reward(parts) if self.return_part is None else parts[self.return_part] or 0.0
        return {'reward_parts': parts, 'failed': failed, 'return': value}
