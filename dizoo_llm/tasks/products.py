"""
Products of two numbers of two digits, for the task ``tools``. A sample problem with the shipped calculator:

    prompt:  34*56=
    turn 0:  <tool_call>{"name":"calc","arguments":{"expression":"34*56"}}</tool_call>   reply:  1904
    turn 1:  1904
"""
import random
from itertools import product
from typing import Dict, Sequence, Tuple

from ding_common import ConfigError, Rule
from dizoo_llm.base import TASK_REGISTRY, Problem
from dizoo_llm.base.task import DividedTask, check_values

from .calculator import demonstrate

NUMBERS = range(32, 100)  # every product has four digits


@TASK_REGISTRY.register('products')
class ProductsTask(DividedTask):
    """
    All 4,624 products, of four digits each, some of them held out; a product with its factors exchanged is not trained
    if one of the two is held out. Reward part: ``right``, 1 if the completion is the number and nothing else.
    """

    weights = dict(right=1.0)
    return_part = 'right'
    must_end = True
    chars = '0123456789*='

    def __init__(self, eval_size: int = 200, seed: int = 0) -> None:
        pairs = list(product(NUMBERS, NUMBERS))
        check_values(eval_size=(eval_size, Rule.integer(1, len(pairs) - 1)))
        random.Random(seed).shuffle(pairs)
        self._held_out = pairs[:eval_size]
        known = set(map(frozenset, self._held_out))
        self._items = [pair for pair in pairs if frozenset(pair) not in known]
        if not self._items:
            raise ConfigError(f'env.task.eval_size = {eval_size}: no product is left for training. Lower it.')

    def problem(self, index: int) -> Problem:
        a, b = self._items[index]
        return Problem(f'{a}*{b}=', str(a * b), dict(index=index))

    def score(self, problem: Problem, completion: str) -> Dict[str, float]:
        return dict(right=float(completion == problem.answer))


def half_right(problem: Problem, turns: Sequence[Tuple[str, str]] = ()) -> str:
    """
    The calculator's ``demonstrate`` for problems with an even index. For the others a number of four digits without a
    call, which is wrong but for a chance of one in 9,000.
    """
    index = problem.metadata['index']
    if index % 2 == 0:
        return demonstrate(problem, turns)
    return str(random.Random(index).randrange(1000, 10_000))
