"""What is different in a replayed collect: values of the config, a forced step, rewards."""
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

import torch

from ding_common import ConfigError, describe, nearest
from ding_common.config.settings import parsed
from ding_grpo.config.key import value_at
from ding_grpo.data.capability import group_policy


class Force(NamedTuple):
    """The action of one step of one row. A step of a language model is a token of the completion."""
    row: int
    step: int
    action: Any


class Fork(NamedTuple):
    """Where the rows of a group divide: before this step of this row."""
    row: int
    step: int

    @classmethod
    def parse(cls, text: str) -> 'Fork':
        """From ROW:TOKEN."""
        return cls(*_read(text, '--fork', 'ROW:TOKEN', _place))


class Changes(NamedTuple):
    """``settings``: values by dotted key of the config. ``forces``: forced steps of the group. ``rewards``: total
    rewards by row of the group."""
    settings: Dict[str, Any] = {}
    forces: List[Force] = []
    rewards: Dict[int, float] = {}

    @classmethod
    def parse(cls, settings: Tuple[str, ...], forces: Tuple[str, ...], rewards: Tuple[str, ...]) -> 'Changes':
        """From the texts of the command line: KEY=VALUE, ROW:STEP=ACTION, ROW=REWARD."""
        return cls(
            dict(_read(text, '--set', 'KEY=VALUE', parsed) for text in settings),
            [_read(text, '--force', 'ROW:STEP=ACTION', _force) for text in forces],
            dict(_read(text, '--reward', 'ROW=REWARD', _reward) for text in rewards),
        )

    def apply(self, cfg: Dict[str, Any]) -> None:
        for key, value in self.settings.items():
            if key not in (known := list(_keys(cfg))):
                raise ConfigError(f'--set {key}: the config has no such key; {nearest(key, known)}')
            section, _, name = key.rpartition('.')
            (value_at(cfg, section) if section else cfg)[name] = value


def _read(text: str, option: str, form: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except (ConfigError, ValueError) as error:
        raise ConfigError(f'{option} {text}: must have the form {form}.') from error


def _force(text: str) -> Force:
    key, action = parsed(text)
    return Force(*_place(key), action)


def _place(text: str) -> Tuple[int, int]:
    row, step = map(int, text.split(':'))
    return row, step


def _reward(text: str) -> Tuple[int, float]:
    row, _, reward = text.partition('=')
    return int(row), float(reward)


def _keys(section: Dict[str, Any], path: str = '') -> Iterator[str]:
    for name, value in section.items():
        yield f'{path}{name}'
        if isinstance(value, dict):
            yield from _keys(value, f'{path}{name}.')


class ChangedPolicy:
    """The functions of a policy that a collector calls, with forced steps and rewards in one group. The rows of all
    other groups are sampled as before."""

    def __init__(self, policy: NamedTuple, group: int, changes: Changes) -> None:
        self._policy, self._group, self._changes = policy, group, changes
        self._taken: Dict[int, int] = {}  # steps of the running episode so far, by environment
        self._start: Dict[int, int] = {}  # tokens of its prompt
        self._earned: Dict[int, float] = {}  # rewards of its earlier steps

    def functions(self) -> NamedTuple:
        return self._policy._replace(
            forward=self._forward, process_transition=self._process_transition, reset=self._reset
        )

    def _reset(self, data_id: Any = None) -> None:
        for known in (self._taken, self._start, self._earned):
            for i in list(known) if data_id is None else data_id:
                known.pop(i, None)
        self._policy.reset(data_id)

    def _forward(self, data: Dict[int, Any], row_keys: Dict[int, Tuple], greedy: bool, **kwargs: Any) -> Dict[int, Any]:
        if greedy:
            return self._policy.forward(data, greedy=True, **kwargs)
        mine = {i: key[2] for i, key in row_keys.items() if i in data and key[1] == self._group}
        forced: Dict[int, Dict[int, Any]] = {}
        for i, row in mine.items():
            forces = [force for force in self._changes.forces if force.row == row]
            if forces:
                before = self._steps_before(i, data[i])
                forced[i] = {force.step - before: force.action for force in forces}
        try:
            outputs = self._policy.forward(data, row_keys=row_keys, forced=forced, **kwargs)
        except (ValueError, IndexError, TypeError, RuntimeError) as error:  # an action that the model does not have
            if not forced:
                raise
            raise ConfigError(f'--force: {describe(error)}') from error
        for i, row in mine.items():
            self._taken[i] = self._taken.get(i, 0) + 1
            outputs[i]['replayed'] = i, row
        return outputs

    def _steps_before(self, env_id: int, obs: Any) -> int:
        """Number of steps of the row before this one; for tokens, including those of the environment."""
        if group_policy(self._policy).spec is None:
            return self._taken.get(env_id, 0)
        size = int((torch.as_tensor(obs) >= 0).sum())
        return size - self._start.setdefault(env_id, size)

    def _process_transition(self, obs: Any, output: Dict[str, Any], timestep: Any) -> Dict[str, Any]:
        env_id, row = output.pop('replayed', (None, None))
        transition = self._policy.process_transition(obs, output, timestep)
        if row in self._changes.rewards:
            if timestep.done:
                transition['reward'][-1] = self._changes.rewards[row] - self._earned.get(env_id, 0.)
                transition.pop('rewards', None)  # of the answers of an agent, which sum to the one before
            else:
                self._earned[env_id] = self._earned.get(env_id, 0.) + transition['reward'].sum().item()
        return transition
