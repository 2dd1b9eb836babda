"""Reward functions in TRL's form, ``(prompts, completions, environments, **columns)``, for one row at a time."""
import inspect
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from ding_common import ConfigError, nearest
from dizoo_llm.base.task import as_list, wrong_number
from dizoo_llm.rewards.functions import callable_of, check_twice, entries_of, name_of

from .instances import Instance

GIVEN = ('prompts', 'completions', 'environments')
NOT_COLUMNS = ('prompt', 'completion', 'completion_ids')  # what functions do not get by these names
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
OF_TRAINER = ('completion_ids', 'trainer_state', 'log_extra', 'log_metric')  # which TRL also gives


class Reward(NamedTuple):
    """A part of the reward."""
    name: str
    function: Callable

    def check(self, columns: Sequence[str]) -> None:
        """Require that there is a value for each parameter."""
        for p in self._parameters:
            if p.default is p.empty and p.kind in NAMED and p.name not in (*GIVEN, *columns):
                told = 'only the trainer of TRL has it. Give it a default' if p.name in OF_TRAINER else \
                    nearest(p.name, [*GIVEN, *columns])
                raise ConfigError(f'env.task.reward: {self.name} has the parameter {p.name!r}: {told}')

    async def score(self, instance: Instance, given: Dict[str, List[Any]]) -> Any:
        """A number, or None if the part does not apply to this row."""
        if not any(p.kind is p.VAR_KEYWORD for p in self._parameters):
            given = {p.name: given[p.name] for p in self._parameters if p.name in given}
        found = as_list(await instance.value(self.function, **given))
        wrong = wrong_number(found, 1)
        if wrong is not None:
            raise ValueError(f'the reward function {self.name} {wrong}: it gets one row at a time')
        return found[0]

    @property
    def _parameters(self) -> List[inspect.Parameter]:
        return list(inspect.signature(self.function).parameters.values())


def rewards_of(entries: Any, where: str) -> List[Reward]:
    """The functions of a config: one, a list, or a dict by the names of their parts."""
    found = []
    for name, entry in [] if entries is None else entries_of(entries):
        function = callable_of(entry, where, "a function, 'module:function', or 'file.py:function'")
        found.append(Reward(name or name_of(function), function))
    return found


def weights_of(names: List[str], given: Optional[Dict[str, float]]) -> Dict[str, float]:
    """The weights of all parts, 1 where none is given."""
    given = {} if given is None else given
    if not names:
        raise ConfigError('env.task.reward = None: set a function, or define get_reward in the environment.')
    check_twice(names, 'env.task.reward')
    for name, weight in given.items():
        if name not in names:
            raise ConfigError(f'env.task.weights.{name} = {weight!r}: there is no such part; {nearest(name, names)}')
    return {**dict.fromkeys(names, 1.0), **given}
