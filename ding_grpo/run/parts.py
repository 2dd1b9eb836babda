"""The parts of a run."""
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Iterator, List, NamedTuple, Optional

from ding.entry.utils import random_collect
from ding.worker import BaseLearner

UNLIMITED = 10 ** 8  # DI-engine's limits where none is set: 1e8 on its command line, 1e10 in its functions


class Limits(NamedTuple):
    """After how many updates and environment steps a run ends."""
    updates: float = float('inf')
    steps: float = float('inf')

    def reached(self, updates: int, steps: int) -> bool:
        return updates >= self.updates or steps >= self.steps


@dataclass
class Parts:
    """What ``ding_grpo.entry.build`` builds, and the loop runs."""
    cfg: Any  # compiled: sections env and policy, exp_name, seed
    policy: Any
    learner: BaseLearner
    collector: Any
    evaluator: Any
    limits: Limits
    seed: int
    buffer: Optional[Any] = None  # a replay buffer, in mode serial
    commander: Optional[Any] = None  # DI-engine's, of its own policies
    collector_env: Optional[Any] = None  # the collector's env manager
    metrics: Optional[Any] = None  # who logs those of each update, in the first process

    def collect(self) -> List[Any]:
        """Collect by the current weights. DI-engine's policies may have arguments, such as a rate of exploration."""
        arguments = None if self.commander is None else self.commander.step()
        return self.collector.collect(train_iter=self.learner.train_iter, policy_kwargs=arguments)

    def fill_buffer(self) -> None:
        """Collect into the replay buffer before the first update, if ``policy.random_collect_size`` asks for it."""
        if self.buffer is not None and self.cfg.policy.get('random_collect_size', 0) > 0:
            commander = self.commander or SimpleNamespace(step=lambda: None)
            random_collect(self.cfg.policy, self.policy, self.collector, self.collector_env, commander, self.buffer)

    def batches(self, collected: List[Any]) -> Iterator[List[Any]]:
        """What each update learns from: all that was collected, or what the replay buffer gives."""
        if self.buffer is None:
            yield collected
            return
        self.buffer.push(collected, cur_collector_envstep=self.collector.envstep)
        modes = self.learner.policy
        for _ in range(self.cfg.policy.learn.update_per_collect):
            drawn = self.buffer.sample(modes.get_attribute('batch_size'), self.learner.train_iter)
            if drawn is None:  # too few are left
                return
            yield drawn
            if modes.get_attribute('priority'):
                self.buffer.update(self.learner.priority_info)

    def close(self) -> None:
        monitor = getattr(self.buffer, '_periodic_thruput_monitor', None)
        if monitor is not None:
            monitor.close()  # else the buffer's thread writes every minute, and creates the log's folder again
        self.collector.close()
        self.evaluator.close()
