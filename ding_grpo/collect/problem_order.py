from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import torch

from ding_common import ConfigError


class ProblemOrder:
    """The problems of training in shuffled epochs: every problem once before any of them twice. The order is a function
    of run seed and epoch, so that a resumed run and several processes draw the same problems."""

    def __init__(self, seed: int, number: int) -> None:
        self._seed, self._number = seed, number
        self._epoch: Optional[int] = None

    def problem(self, position: int) -> int:
        """The index of the problem after ``position`` started groups."""
        return self._at(position)[0]

    def _at(self, position: int) -> Tuple[int, float]:
        """The problem at a position of the endless sequence of epochs, and a random number in [0, 1) for it."""
        epoch, place = divmod(position, self._number)
        if epoch != self._epoch:
            generator = np.random.default_rng([self._seed, epoch])
            self._epoch, self._order = epoch, generator.permutation(self._number)
            self._uniform = generator.random(self._number)
        return int(self._order[place]), self._uniform[place]


class ProblemPools(ProblemOrder):
    """Easy and hard problems come with a probability below 1. A problem's success rate decides its pool; a problem
    without one yet always comes. The draws also depend on the success rates before a collect, which checkpoints
    contain."""

    def __init__(self, seed: int, number: int, cfg: Dict) -> None:
        super().__init__(seed, number)
        self._cfg = cfg
        self._rate = np.full(number, np.nan)  # success rates, NaN if unknown
        self._cursor = 0  # in the sequence of epochs, including problems that were passed over
        self._first = 0  # position of the first problem in ``_drawn``
        self._drawn: List[int] = []

    def problem(self, position: int) -> int:
        """As of ``ProblemOrder``; ``position`` is at least that of the last ``finish``."""
        while len(self._drawn) <= position - self._first:
            self._drawn.append(self._next())
        return self._drawn[position - self._first]

    def finish(self, position: int, rates: List[Tuple[int, float]]) -> None:
        """Learn from a collect, after ``position`` started groups: (problem, success rate) of each of its groups."""
        if position > self._first:
            self.problem(position - 1)  # processes have asked for different positions
        self._first, self._drawn = position, self._drawn[position - self._first:]
        for problem, rate in rates:
            known = self._rate[problem]
            self._rate[problem] = rate if np.isnan(known) else known + self._cfg.newest * (rate - known)

    def sizes(self) -> Dict[str, float]:
        easy, hard = (self._rate >= self._cfg.easy_from).mean(), (self._rate <= self._cfg.hard_to).mean()
        return dict(easy_problems=float(easy), hard_problems=float(hard))

    def state_dict(self) -> Dict[str, Any]:
        return dict(rate=torch.from_numpy(self._rate.copy()), cursor=self._cursor, first=self._first)

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore ``state_dict``. Rates of another number of problems are forgotten, because their order may differ."""
        if len(state['rate']) == self._number:
            self._rate = state['rate'].numpy().copy()
        self._cursor, self._first, self._drawn = state['cursor'], state['first'], []

    def _next(self) -> int:
        while True:
            problem, uniform = self._at(self._cursor)
            self._cursor += 1
            if uniform < self._share(self._rate[problem]):
                return problem

    def _share(self, rate: float) -> float:
        """In which share of epochs such a problem comes."""
        return self._cfg.easy_share if rate >= self._cfg.easy_from else \
            self._cfg.hard_share if rate <= self._cfg.hard_to else 1.0


def make_order(seed: int, problems: Optional[int], cfg: Dict) -> Optional[ProblemOrder]:
    """The order for ``policy.collect`` and a number of problems; None if the environment draws each from its seed."""
    order = cfg.problem_order
    if order == 'pools' and problems is None:
        raise ConfigError(
            "policy.collect.problem_order = 'pools': needs an environment with a known number of problems "
            "(num_problems), such as token_env. Use 'epoch' or 'random'."
        )
    if problems is None or order == 'random':
        return None
    return ProblemOrder(seed, problems) if order == 'epoch' else ProblemPools(seed, problems, cfg.pools)
