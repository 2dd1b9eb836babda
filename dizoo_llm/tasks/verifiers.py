"""
Environments of the package ``verifiers``, from 0.4 on (``verifiers.v1``), whose model is the policy:

    env.task = dict(type='verifiers', id='my_taskset', config=dict(agent=dict(max_turns=4)), eval_size=100)
"""
import copy
from typing import Any, Dict, List, Optional, Tuple

from ding_common import ConfigError, Rule, config_errors
from dizoo_llm.base import TASK_REGISTRY
from dizoo_llm.base.task import check_values

from .agent import AgentTask

NO_KEY = 'NO_API_KEY'  # no variable of a shell has this name, so that no key of the user is sent to the endpoint


@TASK_REGISTRY.register('verifiers')
class VerifiersTask(AgentTask):
    """
    Each row is an episode of an environment, whose harness asks the policy. Reward functions and judges are the parts
    of the reward with their weights, metrics are parts of weight 0.
    """

    def __init__(
            self,
            id: str,
            config: Dict[str, Any] = {},
            size: Optional[int] = None,
            eval_taskset: Optional[Dict[str, Any]] = None,
            eval_size: int = 0,
            seed: int = 0,
            weights: Optional[Dict[str, float]] = None,
            return_part: Optional[str] = None,
            seconds: float = 600.0,
            temperature: float = 1.0,
    ) -> None:
        """
        Arguments:
            - id (:obj:`str`): The taskset, an installed module or one that Python finds.
            - config (:obj:`Dict[str, Any]`): The section ``env`` of a config of verifiers, such as \
                ``dict(taskset=dict(split='train'), agent=dict(harness=dict(id='null'), max_turns=4))``. Harnesses \
                run in processes of this machine (``runtime.type='subprocess'``) unless it says otherwise, and \
                'null' takes the place of the default harness 'bash', which executes what the model writes.
            - size (:obj:`Optional[int]`): Maximum number of problems. None: all. An infinite taskset needs it.
            - eval_taskset (:obj:`Optional[Dict[str, Any]]`): Keys of ``config.taskset`` that evaluation changes, such \
                as ``dict(split='test')``. None holds out ``eval_size`` problems.
            - eval_size (:obj:`int`): Maximum number of evaluation problems; 0 uses all, or the training problems.
            - weights (:obj:`Optional[Dict[str, float]]`): Parts of the reward and their weights. None: the functions \
                of the task. Needed if the environment records rewards of other names.
            - seconds (:obj:`float`): Time that an episode may take without that of the model. Processes of all rows \
                share the processor.
        """
        check_values(id=(id, Rule('the name of a taskset', bool)), size=(size, Rule.integer(1).or_none()))
        self._env, self._seat = _environment(id, config)
        self._tasks, held_out = _tasks(self._env.taskset, size), None
        rows = _rows(self._tasks, 0)
        if eval_taskset is not None:
            changed = dict(config, taskset={**config.get('taskset', {}), **eval_taskset})
            others = _tasks(_environment(id, changed)[0].taskset, size)
            held_out = _rows(others, len(rows))
            self._tasks += others
        weights = _weights(self._tasks[0]) if weights is None else weights
        super().__init__(self._rollout, rows, held_out, eval_size, seed, weights, return_part, seconds, temperature)

    async def _rollout(self, problem: Dict[str, Any], client: Any) -> Dict[str, float]:
        import verifiers.v1 as vf
        env = copy.copy(self._env)  # with servers of its own, since the address of the model is that of the row
        model = vf.EvalClientConfig(base_url=str(client.base_url), api_key_var=NO_KEY)
        async with env.serving():
            episode = await env.run_episode(self._tasks[problem['number']], vf.ModelContext('policy', model))
        if not episode.ok:
            errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
            raise RuntimeError('; '.join(f'{error.type}: {error.message}' for error in errors) or 'the episode failed')
        own = [trace for trace in episode.traces if trace.agent.name == self._seat]
        if len(own) != 1:
            raise RuntimeError(f'{self._seat!r} has run {len(own)} times, must run once in an episode')
        metrics = {name: value for name, value in own[0].metrics.items() if name in self.weights}
        return {**metrics, **{name: reward.score for name, reward in own[0].rewards.items() if reward is not None}}


def _environment(id: str, config: Dict[str, Any]) -> Tuple[Any, str]:
    """An environment, and the name of the agent in it that is the policy."""
    try:
        import verifiers.v1 as vf
        from verifiers.v1.configs.agent import agent_config_fields
    except ImportError as error:
        raise ConfigError(
            f"env.task.type = 'verifiers': {error}. It needs verifiers from 0.4 on and Python 3.11, and numpy 2, which "
            "DI-engine's pins exclude: make install VENV=.venv-verifiers OVERRIDES=overrides.txt EXTRA=verifiers."
        ) from error
    where = f'env.task.id = {id!r}, env.task.config = {config!r:.200}'
    config = {**copy.deepcopy(config), 'taskset': {**config.get('taskset', {}), 'id': id}}
    with config_errors(f'{where}: verifiers cannot load it', '.'):
        seats = agent_config_fields(vf.env_config_type(id, config.get('id', '')).model_construct())
        for name, agent in seats.items():
            config[name] = _here(config.get(name, {}), agent, vf.default_harness_id(id))
        env = vf.load_environment(vf.resolve_env_config(config))
        harnesses = {name: vf.load_harness(found) for name, found in env.config.agent_harnesses().items()}
    for name, agent in agent_config_fields(env.config).items():
        if harnesses[name].EXECUTES_CODE and agent.runtime.type == 'subprocess':
            raise ConfigError(
                f'{where}: the harness {harnesses[name].config.id!r} executes what the model writes, on this machine. '
                f"Set config.{name}.runtime.type to a container, such as 'docker', or config.{name}.harness.id to "
                "'null'. One that executes nothing declares EXECUTES_CODE = False."
            )
    asking = [name for name, agent in agent_config_fields(env.config).items() if agent.client is None]
    if len(asking) != 1:
        raise ConfigError(
            f'{where}: {len(asking)} agents ({", ".join(asking)}) ask the policy, must be one. Set client and model of '
            'the others, such as config.user.client.'
        )
    return env, asking[0]


def _here(given: Any, agent: Any, harness: str) -> Any:
    """What a copy of a config says about an agent, with a process of this machine and a harness that executes nothing
    where neither the config nor the environment chooses."""
    if not isinstance(given, dict):
        return given
    if 'runtime' not in agent.model_fields_set:
        given.setdefault('runtime', dict(type='subprocess'))
    if agent.harness is None and harness == 'bash':
        given.setdefault('harness', dict(id='null'))
    return given


def _tasks(taskset: Any, size: Optional[int]) -> List[Any]:
    if size is None and not taskset.bounded:
        raise ConfigError('env.task.size = None: the taskset is infinite. Set the number of problems.')
    found = list(taskset if size is None else taskset.take(size))
    if not found:
        raise ConfigError(f'env.task.id = {taskset.config.id!r}: the taskset is empty.')
    return found


def _rows(tasks: List[Any], first: int) -> List[Dict[str, Any]]:
    return [dict(prompt=task.data.prompt_text or repr(task.data), number=i) for i, task in enumerate(tasks, first)]


def _weights(task: Any) -> Dict[str, float]:
    """The parts of the reward that a task declares."""
    rewards = {function.__name__: getattr(function, '_vf_weight', 1.0) for function in task.hooks('reward')}
    rewards.update((judge.reward_name, judge.config.weight) for judge in task.plugged_judges())
    if not rewards:
        raise ConfigError(
            f'env.task.weights = None: {type(task).__name__} has no reward function, so its environment records the '
            "reward. Set the names and weights, such as dict(game_reward=1.0)."
        )
    return {**{function.__name__: 0.0 for function in task.hooks('metric')}, **rewards}
