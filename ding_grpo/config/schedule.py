"""The learning rate as a function of the number of updates only, so that it needs no state."""
import math
from typing import Any, Dict, Optional

import torch
from transformers import get_scheduler


class Schedule:
    """A schedule of ``transformers`` that counts updates. An update without an optimizer step (equal groups dropped,
    NaN or infinite numbers) also advances it, so that it ends on time. If the warm-up of W updates starts at rate 0,
    its update u, from 0 to W - 1, has the rate of step u + 1. No update then has the rate 0. All other rates are those
    of ``transformers``."""

    def __init__(self, options: Dict[str, Any], learning_rate: float) -> None:
        """``options`` are ``policy.learn.lr_scheduler``. Raises any exception of ``transformers`` if they are
        inconsistent, and ``ValueError`` if a rate is not a finite number of at least 0."""
        scheduler = get_scheduler(
            options['type'],
            torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=learning_rate),
            options['num_warmup_steps'],
            options['num_training_steps'],
            scheduler_specific_kwargs=dict(options['specific']),
        )
        self._learning_rate = float(learning_rate)
        self._factor, = scheduler.lr_lambdas
        self._warmup = options['num_warmup_steps'] if self._factor(0) == 0 else 0
        self._end = end = options['num_training_steps'] or 0
        for update in (0, options['num_warmup_steps'], end, end + 1):  # the updates at which formulas change
            rate = self.rate(update)
            if isinstance(rate, complex) or not math.isfinite(rate) or rate < 0:
                raise ValueError(f'the rate of update {update} is {rate}')

    def notice(self, updates: Optional[int]) -> Optional[str]:
        """A line about a run of so many updates that goes on after the end of its schedule, None for any other."""
        if not 0 < self._end < (updates or 0) or self.rate(self._end) == self._learning_rate:
            return None
        return (
            f'policy.run.num_updates = {updates}: the schedule ends after '
            f'policy.learn.lr_scheduler.num_training_steps = {self._end} updates. The learning rate is then '
            f'{self.rate(self._end):.3g}, and {self.rate(updates - 1):.3g} in the last update'
        )

    def rate(self, update: int) -> float:
        """The learning rate of an update, given the number of earlier ones."""
        return self._learning_rate * self._factor(update + 1 if update < self._warmup else update)
