from typing import Any, Dict, List, Optional, Tuple, Union

import numpy as np
import torch

from ding_common import ConfigError

from .problem_order import ProblemOrder


class ProblemPools:
    """The problems of training in shuffled epochs, in which easy and hard problems come with a probability below 1. A
    problem's success rate decides its pool; a problem without one yet always comes. The draws are a function of run
    seed, epoch and the success rates before a collect, which checkpoints contain. So a resumed run and several
    processes draw the same problems."""

    def __init__(self, seed: int, number: int, cfg: Dict) -> None:
        self._seed, self._number, self._cfg = seed, number, cfg
        self._rate = np.full(number, np.nan)  # success rates, NaN if unknown
        self._cursor = 0  # in the endless sequence of shuffled epochs, including problems that were passed over
        self._first = 0  # position of the first problem in ``_drawn``
        self._drawn: List[int] = []
        self._epoch = -1

    def problem(self, position: int) -> int:
        """The index of the problem after ``position`` started groups, at least that of the last ``finish``."""
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
            epoch, place = divmod(self._cursor, self._number)
            if epoch != self._epoch:
                generator = np.random.default_rng([self._seed, epoch])
                self._epoch, self._order = epoch, generator.permutation(self._number)
                self._uniform = generator.random(self._number)
            self._cursor += 1
            problem = int(self._order[place])
            if self._uniform[place] < self._share(self._rate[problem]):
                return problem

    def _share(self, rate: float) -> float:
        """In which share of epochs such a problem comes."""
        return self._cfg.easy_share if rate >= self._cfg.easy_from else \
            self._cfg.hard_share if rate <= self._cfg.hard_to else 1.0


def make_order(seed: int, problems: Optional[int], cfg: Dict) -> Union[ProblemOrder, ProblemPools, None]:
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
