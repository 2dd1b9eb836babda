"""
Environments that are classes with tools, as TRL's ``GRPOTrainer(environment_factory=...)`` takes them:

    class Counter:
        def reset(self, start, **columns):
            self._total = start
            return f'The counter is at {start}. Bring it to 10.'  # is added to the prompt

        def add(self, number: int) -> str:
            \"\"\"
            Add to the counter.

            Args:
                number: What to add.
            \"\"\"
            self._total += number
            return str(self._total)

        def get_reward(self) -> float:
            return float(self._total == 10)
"""
import copy
import inspect
from typing import Any, Dict, List, Optional

from transformers.utils import get_json_schema

from ding_common import ConfigError, Rule, config_errors
from dizoo_llm.base import TASK_REGISTRY
from dizoo_llm.base.problem import is_prompt
from dizoo_llm.base.task import check_values
from dizoo_llm.rewards.functions import callable_of

from ..agent import AgentTask
from .dialogue import dialogue, with_observation
from .instances import Pool, tools_of
from .rewards import NOT_COLUMNS, rewards_of, weights_of

NO_PROMPT = [dict(role='user', content='')]  # of a row without one, whose environment writes it
IMAGES = ('image', 'images')
FACTORY = "a class or a function that returns an instance, 'module:Class' or 'file.py:Class', or a dict of these"


@TASK_REGISTRY.register('environment')
class EnvironmentTask(AgentTask):
    """
    Rows of an environment's class. ``reset`` gets the columns of the problem and may return text, which is added to the
    last message of its prompt. All other public methods are functions that the model may call. An episode ends with an
    answer without calls. Reward parts: those of the functions in ``reward``, and that of ``get_reward``, by the name of
    the class.
    """

    direct = True

    def __init__(
            self,
            factory: Any,
            problems: Any = None,
            reward: Any = None,
            eval_problems: Any = None,
            eval_size: int = 0,
            seed: int = 0,
            weights: Optional[Dict[str, float]] = None,
            return_part: Optional[str] = None,
            max_tool_calling_iterations: Optional[int] = None,
            seconds: float = 60.0,
    ) -> None:
        """
        Arguments:
            - factory (:obj:`Any`): ``'module:Class'``, ``'file.py:Class'``, the class itself, or a function that \
                returns an instance. Or a dict of them: the column ``environment`` names the one of a row.
            - problems (:obj:`Any`): Data as the task ``agent`` reads them, with the column ``prompt``. None: one row \
                without columns, for an environment that has the data itself.
            - reward (:obj:`Any`): Reward functions of TRL's form, one, a list, or a dict by names of parts. Each gets \
                a batch of one row. None: only ``get_reward``.
            - eval_problems (:obj:`Any`): The same as ``problems``, for evaluation; None holds out ``eval_size``.
            - eval_size (:obj:`int`): Maximum number of evaluation problems; 0 uses all, or the training problems.
            - weights (:obj:`Optional[Dict[str, float]]`): Weights of parts of the reward; 1 for others.
            - max_tool_calling_iterations (:obj:`Optional[int]`): How many answers with calls are executed in an \
                episode. None: as many as ``env.max_turns`` and ``env.max_tokens`` allow.
            - seconds (:obj:`float`): Time that an environment may take itself in an episode.
        """
        check_values(max_tool_calling_iterations=(max_tool_calling_iterations, Rule.integer(0).or_none()))
        self._most, self._several = max_tool_calling_iterations, isinstance(factory, dict)
        given = factory if self._several else {None: factory}
        factories = {name: callable_of(each, 'env.task.factory', FACTORY) for name, each in given.items()}
        kinds = {name: each if inspect.isclass(each) else type(each()) for name, each in factories.items()}
        self._schemas = {name: _schemas(kind) for name, kind in kinds.items()}
        self._pool = Pool(factories)
        owners = dict.fromkeys(kind for kind in kinds.values() if hasattr(kind, 'get_reward'))
        self._rewards, self._owners = rewards_of(reward, 'env.task.reward'), owners
        names = [*(each.name for each in self._rewards), *(kind.__name__ for kind in owners)]
        super().__init__(
            self._run, [dict(prompt=NO_PROMPT)] if problems is None else problems, eval_problems, eval_size, seed,
            weights_of(names, weights), return_part, seconds
        )
        rows = [problem.metadata['row'] for problem in (*self._items, *(self._held_out or ()))]
        self._columns = sorted({key for row in rows for key in row if key not in NOT_COLUMNS})
        for each in self._rewards:
            each.check(self._columns)
        resets = {name: inspect.signature(kind.reset) for name, kind in kinds.items()}
        for row in rows:
            self._check_row(row, resets)

    def _check_row(self, row: Dict[str, Any], resets: Dict[Optional[str], inspect.Signature]) -> None:
        """Require what can be played: text, a known environment, and columns that its ``reset`` takes."""
        for key in IMAGES:
            if row.get(key) is not None:
                raise ConfigError(f'env.task.problems: a row has the column {key!r}, and the model reads text only.')
        name = self._name_of(row)
        if name not in resets:
            known = ', '.join(map(repr, resets))
            raise ConfigError(f'env.task.problems: a row has environment = {name!r}: must be one of {known}.')
        if not is_prompt(row.get('prompt', '')):
            raise ConfigError(f"env.task.problems: prompt = {row['prompt']!r:.200}: must be text or messages.")
        try:
            resets[name].bind(None, **self._columns_of(row))
        except TypeError as error:
            raise ConfigError(
                f'env.task.factory: reset{resets[name]} gets the columns of a row as arguments: {error}. Add the '
                'parameter, or **columns.'
            ) from error

    def _name_of(self, row: Dict[str, Any]) -> Optional[str]:
        return row.get('environment') if self._several else None

    def _columns_of(self, row: Dict[str, Any]) -> Dict[str, Any]:
        """What ``reset`` gets."""
        return {key: value for key, value in row.items() if not self._several or key != 'environment'}

    async def _run(self, row: Dict[str, Any], client: Any) -> Dict[str, Optional[float]]:
        """An episode. An instance whose row fails or is cancelled is not used again."""
        row, name = copy.deepcopy(row), self._name_of(row)
        instance = await self._pool.take(name)
        observation = await instance.value(instance.environment.reset, **self._columns_of(row))
        prompt = with_observation(row.get('prompt', NO_PROMPT), observation)
        said = await dialogue(client, instance, prompt, self._schemas[name], self._most)
        given = {key: [row.get(key)] for key in self._columns}
        given.update(prompts=[prompt], completions=[said], environments=[instance.environment])
        parts = {reward.name: await reward.score(instance, given) for reward in self._rewards}
        for kind in self._owners:  # a class that inherits from it has a part of its own, as in TRL
            own = type(instance.environment) is kind
            parts[kind.__name__] = await instance.value(instance.environment.get_reward) if own else None
        self._pool.give(name, instance)
        return parts


def _schemas(kind: type) -> List[Dict[str, Any]]:
    """The tools of an environment as a chat template describes them."""
    if not callable(getattr(kind, 'reset', None)):
        raise ConfigError(f'env.task.factory: {kind.__name__} has no method reset.')
    found = []
    for name, tool in tools_of(object.__new__(kind)).items():
        told = f'env.task.factory: {kind.__name__}.{name} cannot be offered to a model'
        with config_errors(told, '. Methods that are not tools begin with an underscore.'):
            found.append(get_json_schema(tool))  # raises for a missing hint or description
    return found
