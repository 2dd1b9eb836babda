"""Which processes of a task are alive."""
import time
from threading import Event, Lock, Thread
from typing import Any, Dict, Optional, Tuple

import click
from ding.framework import Context, task

ALIVE = 'ding_grpo_alive'  # event: node, role
PERIOD = 1.0  # seconds between two signs of life; a tenth of the timeout if that is shorter


class Workers:
    """Middleware that tells which processes of a task have died, the first one of each process that has a role. From
    its first call on, a process gives signs of life, also while it samples or learns. The others wait for the learner,
    because it would miss what they send before. Without a learner they end; without a collector the learner does; all
    other deaths are told in a line."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(cls) if task.router.is_active else task.void()

    def __init__(self, timeout: float = 20.0) -> None:
        """
        Arguments:
            - timeout (:obj:`float`): Seconds of silence after which a process counts as dead.
        """
        self._timeout, self._lock = timeout, Lock()
        self._role = next(role.value for role in task.role if task.has_role(role))
        self._heard: Dict[int, Tuple[str, float]] = {}  # role and time of the last sign, by node
        self._learner, self._over = Event(), Event()
        self._lost: Optional[str] = None  # why the run cannot go on
        self._thread = Thread(target=self._run, name='signs_of_life', daemon=True)
        task.router.on(ALIVE, self._hear)

    def __call__(self, ctx: Context) -> None:
        """Raises a ``RuntimeError`` if no collector is left, in the learner."""
        if not self._thread.is_alive():
            self._thread.start()
            task.once('finish', self._end)
        while self._role != 'learner' and not (self._learner.wait(0.1) or task.finish):
            pass
        if self._lost is not None:
            raise RuntimeError(self._lost)

    def _hear(self, node: int, role: str) -> None:
        with self._lock:
            new = node not in self._heard
            self._heard[node] = role, time.monotonic()
        if role == 'learner':
            self._learner.set()
        if new and self._role == 'learner':
            click.echo(f'{role} {node} takes part.')

    def _run(self) -> None:
        while not self._over.wait(min(PERIOD, self._timeout / 10)) and task.router.is_active:
            task.router.emit(ALIVE, task.router.node_id, self._role)
            self._look()

    def _look(self) -> None:
        with self._lock:
            now = time.monotonic()
            dead = {node: role for node, (role, last) in self._heard.items() if now - last > self._timeout}
            for node in dead:
                del self._heard[node]
            left = [role for role, _ in self._heard.values()]
        for node, role in dead.items():
            if self._role == 'learner' or role == 'learner':
                others = '' if role == 'learner' else f' {role.capitalize()}s that are left: {left.count(role)}.'
                click.echo(f'{role} {node} has given no sign of life for {self._timeout:g} s.{others}')
        if 'learner' in dead.values():
            task.finish = True
        elif self._role == 'learner' and 'collector' in dead.values() and 'collector' not in left:
            self._lost = f'no collector is left: the last has given no sign of life for {self._timeout:g} s.'
            self._wake()

    def _end(self, _: bool) -> None:
        self._over.set()
        self._wake()

    def _wake(self) -> None:
        """DI-engine's ContextExchanger lets a learner wait for groups until some arrive, also when the run is over."""
        if self._role == 'learner':
            event = 'context_exchanger_{role}'.format(role=task.role.COLLECTOR)
            task.emit(event, dict(episodes=[]), only_local=True)
