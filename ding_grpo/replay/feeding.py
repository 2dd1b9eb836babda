"""Environments that get what they recorded in the run, such as the requests of an agent, which then does not run."""
import os
from typing import Any, Dict, Optional, Tuple

from ding.utils import ENV_MANAGER_REGISTRY

from ding_common.processes.env_manager import TogetherManager
from ding_grpo.collect.group_player import start_seed
from ding_grpo.collect.records import NAME, read_records

Records = Dict[Tuple[int, int], Any]  # by group and row


def recorded(run: str, collect_iter: Optional[int]) -> Records:
    """What the environments of a run, in its folder, recorded of a collect."""
    return read_records(os.path.join(run, 'log', 'collector', NAME), collect_iter)


@ENV_MANAGER_REGISTRY.register('replay')
class FeedingManager(TogetherManager):
    """Gives an environment the record of its row when it is reset."""

    def feed(self, records: Records, rows: int, seed: int, collect_iter: int) -> None:
        """``rows``: of a group. ``seed``: of the run."""
        self._records, self._rows = records, rows
        self._group = {start_seed(seed, collect_iter, group, 0): group for group, _ in records}

    def seed(self, seed: Any, dynamic_seed: Optional[bool] = None) -> None:
        super().seed(seed, dynamic_seed)
        self._seeds = seed

    def reset(self, reset_param: Optional[Dict[int, Any]] = None) -> None:
        if reset_param is not None and len(reset_param) == self._rows:  # else the greedy row of a group
            group = self._group.get(self._seeds[min(reset_param)])
            for row, i in enumerate(sorted(reset_param)):
                if (group, row) in self._records:
                    reset_param = {**reset_param, i: dict(reset_param[i], recorded=self._records[group, row])}
        super().reset(reset_param)
