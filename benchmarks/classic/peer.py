"""
Shared by the two peers of ``wall_clock.py``: a job in, the record of its evaluations out. Runs in an environment with
Stable-Baselines3, which has nothing of this project or of DI-engine.
"""
import json
import sys
import time
from typing import Any, Callable, Dict, List, Tuple

import torch

from benchmarks.shared.starts import Starts


class Record:
    """
    Overview:
        Evaluations whenever the environment steps have passed a multiple of the job's interval, and the processor \
        seconds of training between them.
    """

    def __init__(self, job: Dict[str, Any], starts: Starts) -> None:
        """
        Arguments:
            - job (:obj:`Dict[str, Any]`): ``interval``, ``budget`` and ``bar``, as in ``benchmarks.comparison``.
            - starts (:obj:`Starts`): Evaluates the policy.
        """
        self._job, self._starts, self._passed = job, starts, 0
        self.evaluations: List[Tuple[int, float, float]] = [(0, round(starts(), 6), 0.0)]
        self.seconds, self.collecting = 0.0, 0.0
        self._since = time.process_time()

    def collected(self) -> None:
        """A collect has ended, which began with the construction or the last ``updated``."""
        self.collecting += time.process_time() - self._since

    def updated(self, steps: int) -> bool:
        """An update has ended. Returns whether the run goes on."""
        self.seconds += time.process_time() - self._since
        if steps // self._job['interval'] > self._passed or steps >= self._job['budget']:
            self._passed = steps // self._job['interval']
            self.evaluations.append((steps, round(self._starts(), 6), round(self.seconds, 2)))
        last = self.evaluations[-1]
        self._since = time.process_time()
        return steps < self._job['budget'] and (last[0] == 0 or last[1] < self._job['bar'])


def run(train: Callable[[Dict[str, Any]], Record], versions: Dict[str, str]) -> None:
    """
    Overview:
        Read the job that the command line names, train in one thread, and write the result to the file that it names.
    """
    with open(sys.argv[1]) as f:
        job = json.load(f)
    torch.set_num_threads(1)
    record = train(job)
    result = dict(evaluations=record.evaluations, collecting=round(record.collecting, 2), packages=versions)
    with open(job['result'], 'w') as f:
        json.dump(result, f)
