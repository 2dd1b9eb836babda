"""The learning rate as a function of the number of updates alone, so that it needs no state."""
import math
from typing import Any, Dict

import torch
from transformers import get_scheduler


class Schedule:
    """
    Overview:
        A schedule of ``transformers`` that counts updates, whatever they did: an update without a step of the \
        optimizer (equal groups left out, numbers that are not finite) advances it too, so that it ends on time. \
        Where the warm-up of W updates begins at 0, its update u of 0 to W - 1 has the rate of step u + 1: no update \
        is wasted on a rate of 0. All other rates are those of ``transformers``.
    Interfaces:
        ``rate``
    """

    def __init__(self, options: Dict[str, Any], learning_rate: float) -> None:
        """
        Overview:
            Make the schedule.
        Arguments:
            - options (:obj:`Dict`): The section ``policy.learn.lr_scheduler``.
            - learning_rate (:obj:`float`): The rate that is scheduled.
        Raises:
            - Exception: Whatever ``transformers`` raises if the options do not go together.
            - ValueError: If a rate is not a finite number of at least 0.
        """
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
        end = options['num_training_steps'] or 0
        for update in (0, options['num_warmup_steps'], end, end + 1):  # where formulas change
            rate = self.rate(update)
            if isinstance(rate, complex) or not math.isfinite(rate) or rate < 0:
                raise ValueError(f'the rate of update {update} is {rate}')

    def rate(self, update: int) -> float:
        """
        Overview:
            The learning rate of an update.
        Arguments:
            - update (:obj:`int`): How many updates there were before it.
        """
        return self._learning_rate * self._factor(update + 1 if update < self._warmup else update)
