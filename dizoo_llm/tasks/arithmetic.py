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
import re
from itertools import product
from typing import Dict, List, Optional, Tuple

from ding_common import ConfigError, Rule
from dizoo_llm.base import TASK_REGISTRY, Problem
from dizoo_llm.base.task import DividedTask, check_values

MOST = 1_000_000  # problems, which are kept in memory
OPERATIONS = {'+': operator.add, '-': operator.sub, '*': operator.mul}


@TASK_REGISTRY.register('arithmetic')
class ArithmeticTask(DividedTask):
    """
    Training has all problems but the worked examples, those held out, and other forms of either: 3 + 8 = 11 is the fact
    of 8 + 3, 11 - 3, 11 - 8, 3 - 11 and 8 - 11. Reward parts: ``right``, 1 if the completion is the number and nothing
    else; ``near``, 1 / (1 + d) for a number that is d away from the right one, and 0 for anything else.
    """

    return_part = 'right'

    def __init__(
            self,
            operations: str = '+-',
            low: int = 1,
            high: int = 20,
            examples: int = 3,
            eval_size: int = 128,
            negative: bool = True,
            near: float = 0.0,
            train_high: Optional[int] = None,
            seed: int = 0,
    ) -> None:
        """
        Arguments:
            - operations (:obj:`str`): Any of '+', '-' and '*'.
            - examples (:obj:`int`): Number of worked examples in each prompt.
            - negative (:obj:`bool`): Whether results may be negative.
            - near (:obj:`float`): Weight of ``near`` beside 1 for ``right``. A model that is rarely right learns from \
                near misses.
            - train_high (:obj:`Optional[int]`): The largest number of a training problem, at least ``high``; None for \
                ``high``. More problems than can be memorised in a run are learned by rule.
            - seed (:obj:`int`): Seed of the division into examples, evaluation and training.
        """
        if not isinstance(operations, str) or not operations or set(operations) - set(OPERATIONS):
            raise ConfigError(f'env.task.operations = {operations!r}: must be some of {"".join(OPERATIONS)!r}.')
        number = Rule.integer(0)
        check_values(low=(low, number), high=(high, number), examples=(examples, number), seed=(seed, number))
        check_values(eval_size=(eval_size, Rule.integer(1)), near=(near, Rule.number(0)))
        check_values(train_high=(train_high, Rule.integer(high).or_none()))
        key, largest = ('high', high) if train_high is None or high < low else ('train_high', train_high)
        if high < low or (largest - low + 1) ** 2 * len(set(operations)) > MOST:
            raise ConfigError(
                f'env.task.{key} = {largest!r} with env.task.low = {low!r}: must be at least as large, and the task '
                f'may have at most {MOST:,} problems.'
            )
        numbers = range(low, largest + 1)
        found = product(numbers, dict.fromkeys(operations), numbers)
        found = [p for p in found if negative or _value(*p) >= 0]
        problems = [(a, o, b) for a, o, b in found if max(a, b) <= high]
        random.Random(seed).shuffle(problems)
        shown = set(map(_fact, problems[:examples]))
        self._held_out = [p for p in problems[examples:] if _fact(p) not in shown][:eval_size]
        known = shown | set(map(_fact, self._held_out))
        self._items = [p for p in problems if _fact(p) not in known]
        self._items += [p for p in found if max(p[0], p[2]) > high and _fact(p) not in known]
        if len(self._held_out) < eval_size or not self._items:
            raise ConfigError(
                f'env.task.eval_size = {eval_size} with env.task.examples = {examples}: of {len(problems)} problems '
                'and their other forms none is left for training. Lower one of them, or raise env.task.high.'
            )
        self.weights = dict(right=1.0, near=near) if near > 0 else dict(right=1.0)
        self._shown = [message for p in problems[:examples] for message in _asked(*p)]

    def problem(self, index: int) -> Problem:
        question, answer = _asked(*self._items[index])
        return Problem([*self._shown, question], answer['content'])

    def score(self, problem: Problem, completion: str) -> Dict[str, float]:
        text = completion.strip()
        parts = dict(right=float(text == problem.answer))
        if 'near' in self.weights:
            number = re.fullmatch(r'-?\d{1,9}', text, re.ASCII)
            parts['near'] = 1 / (1 + abs(int(text) - int(problem.answer))) if number else 0.0
        return parts


def _fact(problem: Tuple[int, str, int]) -> Tuple[int, ...]:
    """The same for a sum, its commuted form and its inverse differences; for a product and its commuted form."""
    return tuple(sorted((problem[0], problem[2], abs(_value(*problem)))))


def _value(a: int, operation: str, b: int) -> int:
    return OPERATIONS[operation](a, b)


def _asked(a: int, operation: str, b: int) -> List[Dict[str, str]]:
    question, answer = f'What is {a} {operation} {b}?', str(_value(a, operation, b))
    return [dict(role='user', content=question), dict(role='assistant', content=answer)]
