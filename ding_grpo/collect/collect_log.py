import os
from logging import Logger
from typing import Any, Callable, Dict, List

import numpy as np

from ding_common import append_json, parallel
from ding_grpo.logs.scalars import add_scalars
from ding_grpo.logs.screen import show

from .completion_table import best_and_worst, failed, records_of, table
from .group import Collected, equal_in_float32

# State that a resumed run restores.
COUNTERS = ('episodes', 'last_table', 'last_print')


class CollectLog:
    """Log of a collector: numbers as text and for TensorBoard, and completions: the best and the worst of each group in
    a table for readers (completions.txt), and untruncated, with those that could not be scored, in completions.jsonl.
    """

    def __init__(self, name: str, cfg: Dict, folder: str, logger: Logger, tb_logger: Any) -> None:
        self._name, self._cfg, self._logger, self._tb_logger = name, cfg, logger, tb_logger
        self._path = os.path.join(folder, 'completions')
        self._episodes = 0
        self._last_table = self._last_print = None
        self._told_equal = False  # in this run

    def state_dict(self) -> Dict[str, Any]:
        return {name: getattr(self, f'_{name}') for name in COUNTERS}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        for name in COUNTERS:
            setattr(self, f'_{name}', state[name])

    def write(
            self, groups: List[Collected], seconds: Dict[str, float], train_iter: int, envstep: int,
            advantages: Callable, further: Dict[str, float]
    ) -> None:
        """Log a collect: its groups, seconds by part, the updates before it and the environment steps after it.
        ``advantages`` computes those of each group's rows; ``further`` has further numbers to log."""
        episodes = sum(len(group.infos) for group in groups)
        self._episodes += episodes
        if parallel.rank() > 0:
            return
        if self._last_print is None or train_iter - self._last_print >= self._cfg.collect_print_freq:
            self._last_print = train_iter
            self._write_numbers(groups, episodes, sum(seconds.values()), train_iter, envstep, further)
        equal = None if self._told_equal else equal_in_float32(groups)
        if equal is not None:
            self._told_equal = True
            show(
                f'warning: the rewards {equal[0]!r} and {equal[1]!r} of a group (update {train_iter}) are equal in '
                'float32, so nothing is learned from their difference. Subtract a constant, or raise the difference.'
            )
        if 'completion' in groups[0].infos[0]:
            self._write_completions(groups, train_iter, advantages)

    def _write_numbers(
            self, groups: List[Collected], episodes: int, seconds: float, train_iter: int, envstep: int, further: Dict
    ) -> None:
        samples = [group.sample for group in groups]
        returns = np.concatenate([group.returns().numpy() for group in groups])
        steps = float(sum(s['weight'].sum() for s in samples))
        info = dict(
            episode_count=episodes,
            envstep_count=steps,
            train_sample_count=steps,  # those of DI-engine's PPO are steps
            avg_envstep_per_episode=steps / episodes,
            avg_envstep_per_sec=steps / seconds,
            total_envstep_count=envstep,
            total_episode_count=self._episodes,
            **further,
        )
        if len(returns) > 0:
            info.update({f'reward_{name}': getattr(returns, name)() for name in ('mean', 'std', 'max', 'min')})
        self._logger.info(f'collect end, update {train_iter}: {info}')
        for axis, step in (('iter', train_iter), ('step', envstep)):
            add_scalars(self._tb_logger, {f'{self._name}_{axis}/{name}': value for name, value in info.items()}, step)

    def _write_completions(self, groups: List[Collected], train_iter: int, advantages: Callable) -> None:
        due = self._last_table is None or train_iter - self._last_table >= self._cfg.table_freq
        if not (due or any(map(failed, groups))):
            return
        of_rows, records = advantages([group.sample for group in groups]), []
        if due:
            self._last_table = train_iter
            records = records_of(train_iter, groups, of_rows, best_and_worst)
            text = table(train_iter, records[:self._cfg.table_rows])
            with open(f'{self._path}.txt', 'a', encoding='utf-8') as f:
                f.write(text + '\n\n')
            show(text)
        for record in [*records, *records_of(train_iter, groups, of_rows, failed)]:
            append_json(f'{self._path}.jsonl', record)
