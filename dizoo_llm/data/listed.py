"""Tasks over a list of problems."""
import random
import warnings
from typing import Dict, Optional, Sequence

from ding_common import ConfigError, Rule
from dizoo_llm.base import Problem
from dizoo_llm.base.task import DividedTask, check_values

from .facts import as_written, digest
from .packed import Packed


class ListTask(DividedTask):
    """
    A task over a list of problems. Held-out problems, if any, are a separate list or are drawn with a seed. Training
    has no problem whose fact (``as_written``) is that of a held-out one.
    """

    listed = True

    def __init__(self, problems: Sequence[Problem], held_out: Optional[Sequence[Problem]], eval_size: int, seed: int):
        """
        ``eval_size`` is the maximum number of evaluation problems, each text once, which are drawn with a seed if
        ``held_out`` is None. 0 uses all of ``held_out``; if that is None, evaluation uses the training problems.
        """
        check_values(eval_size=(eval_size, Rule.integer(0)), seed=(seed, Rule.integer(0)))
        if held_out is None and eval_size == 0:
            self._items = self._held_out = _chosen(problems, range(len(problems)))
            return
        source = problems if held_out is None else held_out
        first: Dict[bytes, int] = {}  # text -> index of the first problem with it
        for i, problem in enumerate(source):
            first.setdefault(digest(problem.text.split()), i)
        drawn, facts = list(first.values()), list(map(as_written, source))
        if held_out is None:
            order = list(dict.fromkeys(facts))
            random.Random(seed).shuffle(order)
            place = {fact: n for n, fact in enumerate(order)}
            drawn.sort(key=lambda i: place[facts[i]])
        if eval_size > 0:
            drawn = drawn[:eval_size]
        self._held_out, found = _chosen(source, drawn), {facts[i] for i in drawn}
        of_all = facts if held_out is None else map(as_written, problems)
        self._items = _chosen(problems, [i for i, fact in enumerate(of_all) if fact not in found])
        lost, key = len(problems) - len(self._items), f'eval_size = {eval_size}' if held_out is None else 'eval_path'
        if 0 < len(problems) == lost:
            do = 'Lower eval_size, or add problems' if held_out is None else 'Use other problems in it'
            raise ConfigError(
                f'env.task.{key}: there is no problem for training. The {len(drawn)} held-out problem(s) are those of '
                f'all {lost} problems, in the same or in another form. {do}.'
            )
        if lost > (len(drawn) if held_out is None else 0):
            warnings.warn(
                f'env.task.{key}: {lost} of {len(problems)} problems are not trained, because they are held out or '
                f'another form of one of the {len(drawn)} that are.'
            )

    def problem(self, index: int) -> Problem:
        return self._items[index]


def _chosen(problems: Sequence[Problem], indices: Sequence[int]) -> Sequence[Problem]:
    return problems.chosen(indices) if isinstance(problems, Packed) else [problems[i] for i in indices]
