"""
Sums, differences and products of two whole numbers, for chat models. A problem with one worked example, and a right
completion:

    user:       What is 7 + 12?
    assistant:  19
    user:       What is 3 - 8?
    completion: -5
"""
import operator
import random
from itertools import product
from typing import Dict, List

from ding_common import ConfigError, Rule

from .base import TASK_REGISTRY, Problem, Task

MOST = 1_000_000  # problems, which are kept in memory
OPERATIONS = {'+': operator.add, '-': operator.sub, '*': operator.mul}


@TASK_REGISTRY.register('arithmetic')
class ArithmeticTask(Task):
    """
    Overview:
        All problems are different. Some are shown as worked examples, others are held out, and the rest is for
        training. Reward part: ``right``, 1 if the completion is the number and nothing else.
    """

    weights = dict(right=1.0)
    return_part = 'right'

    def __init__(
            self,
            operations: str = '+-',
            low: int = 1,
            high: int = 20,
            examples: int = 3,
            eval_size: int = 128,
            seed: int = 0,
    ) -> None:
        """
        Arguments:
            - operations (:obj:`str`): Any of '+', '-' and '*'.
            - low (:obj:`int`): The smallest number of a problem.
            - high (:obj:`int`): The largest number of a problem.
            - examples (:obj:`int`): Number of worked examples in each prompt.
            - eval_size (:obj:`int`): Number of evaluation problems.
            - seed (:obj:`int`): Seed of the division into examples, evaluation and training.
        Raises:
            - ConfigError: If an argument is invalid, or no problem is left for training.
        """
        if not isinstance(operations, str) or not operations or set(operations) - set(OPERATIONS):
            raise ConfigError(f'env.task.operations = {operations!r}: must be some of {"".join(OPERATIONS)!r}.')
        for key, value, rule in (('low', low, Rule.integer(0)), ('high', high, Rule.integer(0)), ('examples', examples,
                                                                                                  Rule.integer(0)),
                                 ('eval_size', eval_size, Rule.integer(1)), ('seed', seed, Rule.integer(0))):
            if not rule.holds(value):
                raise ConfigError(f'env.task.{key} = {value!r}: must be {rule.allowed}.')
        if high < low or (high - low + 1) ** 2 * len(set(operations)) > MOST:
            raise ConfigError(
                f'env.task.high = {high!r} with env.task.low = {low!r}: must be at least as large, and the task may '
                f'have at most {MOST:,} problems.'
            )
        numbers = range(low, high + 1)
        problems = list(product(numbers, dict.fromkeys(operations), numbers))
        if len(problems) <= examples + eval_size:
            raise ConfigError(
                f'env.task.eval_size = {eval_size} with env.task.examples = {examples}: of {len(problems)} problems '
                'none is left for training. Lower one of them, or raise env.task.high.'
            )
        random.Random(seed).shuffle(problems)
        self._shown: List[Dict[str, str]] = []
        for problem in problems[:examples]:
            question, answer = _written(*problem)
            self._shown += [dict(role='user', content=question), dict(role='assistant', content=answer)]
        self._held_out, self._problems = problems[examples:examples + eval_size], problems[examples + eval_size:]

    def __len__(self) -> int:
        return len(self._problems)

    def problem(self, index: int) -> Problem:
        question, answer = _written(*self._problems[index])
        return Problem([*self._shown, dict(role='user', content=question)], answer)

    def score(self, problem: Problem, completion: str) -> Dict[str, float]:
        return dict(right=float(completion.strip() == problem.answer))

    def evaluation(self) -> Task:
        other = ArithmeticTask.__new__(ArithmeticTask)
        other._shown, other._problems, other._held_out = self._shown, self._held_out, self._held_out
        return other


def _written(a: int, operation: str, b: int) -> List[str]:
    return [f'What is {a} {operation} {b}?', str(OPERATIONS[operation](a, b))]
