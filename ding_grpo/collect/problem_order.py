from typing import Optional

import numpy as np


class ProblemOrder:
    """The problems of training in shuffled epochs: every problem once before any of them twice. The order is a function
    of run seed and epoch, so that a resumed run and several processes draw the same problems. Positions are counted by
    ``source.py``; pools of problems: ``problem_pools.py``."""

    def __init__(self, seed: int, number: int) -> None:
        self._seed, self._number = seed, number
        self._epoch: Optional[int] = None

    def problem(self, position: int) -> int:
        """The index of the problem after ``position`` started groups."""
        epoch, place = divmod(position, self._number)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng([self._seed, epoch]).permutation(self._number)
        return int(self._order[place])
