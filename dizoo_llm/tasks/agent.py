"""
The task of an agent: a coroutine that asks the policy as a chat model and returns its reward.

    async def run(problem, client):
        reply = await client.chat.completions.create(model='policy', messages=[dict(role='user', content=...)])
        return dict(right=float(reply.choices[0].message.content == problem['answer']))
"""
import inspect
from typing import Any, Dict, List, Optional

from ding_common import ConfigError, Rule, TaskError, import_name
from dizoo_llm.base import TASK_REGISTRY, Parts, Problem
from dizoo_llm.base.problem import is_prompt
from dizoo_llm.base.task import check_return_part, check_values
from dizoo_llm.data.listed import ListTask
from dizoo_llm.data.rows import read_rows, shown


@TASK_REGISTRY.register('agent')
class AgentTask(ListTask):
    """
    Programs that talk to a model by OpenAI's interface, see ``dizoo_llm.agents``. Each row runs ``run`` for its problem
    with a client whose model is the policy.
    """

    environment = 'dizoo_llm.agents:AgentEnv'
    # (bool) Whether ``run`` gets a client without HTTP and JSON, ``dizoo_llm.agents.episode.Direct``.
    direct = False

    def __init__(
            self,
            run: Any,
            problems: Any,
            eval_problems: Any = None,
            eval_size: int = 0,
            seed: int = 0,
            weights: Optional[Dict[str, float]] = None,
            return_part: Optional[str] = None,
            seconds: float = 60.0,
            temperature: float = 1.0,
    ) -> None:
        """
        Arguments:
            - run (:obj:`Any`): ``'my_agent:run'``, or the coroutine function itself. It gets a problem, a dict, and \
                an ``openai.AsyncOpenAI``, and returns a number, a dict of the parts of ``weights``, or None if the \
                episode cannot be scored.
            - problems (:obj:`Any`): Data as the task ``file`` reads them: a file, a list of dicts, a data set; or \
                ``'module:function'``, which returns such a list.
            - eval_problems (:obj:`Any`): The same, for evaluation; None holds out ``eval_size`` of ``problems``.
            - eval_size (:obj:`int`): Maximum number of evaluation problems; 0 uses all, or the training problems.
            - weights (:obj:`Optional[Dict[str, float]]`): Parts of the reward and their weights. None: ``reward``.
            - seconds (:obj:`float`): Time that an agent may take itself in an episode, without that of the model.
            - temperature (:obj:`float`): The one that a request may name, ``policy.collect.temperature``.
        """
        check_values(
            seconds=(seconds, Rule.number(0, 86400, True)),
            temperature=(temperature, Rule.number(0, open_low=True)),
            weights=(weights, Rule('a dict of at least one part', lambda v: v is None or isinstance(v, dict) and v))
        )
        check_values(**{f'weights.{name}': (weight, Rule.number()) for name, weight in (weights or {}).items()})
        self.run = import_name(run, 'env.task.run', coroutine=True) if isinstance(run, str) else run
        if not inspect.iscoroutinefunction(self.run):
            raise ConfigError(
                f'env.task.run = {run!r:.80}: must be a coroutine function, async def run(problem, client).'
            )
        self.weights = dict(reward=1.0) if weights is None else {name: float(w) for name, w in weights.items()}
        check_return_part(return_part, self.weights, 'env.task.return_part')
        self.return_part, self.seconds, self.temperature = return_part, seconds, temperature
        held_out = None if eval_problems is None else _problems('eval_problems', eval_problems)
        super().__init__(_problems('problems', problems), held_out, eval_size, seed)

    def parts_of(self, value: Any, problem: Problem, answers: int) -> List[Parts]:
        """The parts of the reward in what an agent returned, of the whole episode or of each of its answers. Raises a
        ``TaskError`` if it is not such."""
        if value is None:
            raise TaskError('the agent returned None: it could not score the episode')
        if not isinstance(value, (list, tuple)):
            return [self._parts(value, problem)]
        if len(value) != answers:
            told = f'returned {len(value)} rewards, must return one for each of {answers} answers'
            raise self._error(told, problem, '')
        return [self._parts(each, problem) for each in value]

    def _parts(self, value: Any, problem: Problem) -> Parts:
        if not isinstance(value, dict):
            if len(self.weights) > 1:
                raise self._error(f'returned {value!r:.200}, must return a dict of {sorted(self.weights)}', problem, '')
            value = {next(iter(self.weights)): value}
        if set(value) - set(self.weights):
            told = f'returned {value!r:.200}, must return parts among {sorted(self.weights)} (env.task.weights)'
            raise self._error(told, problem, '')
        return self._checked_parts(value, 'returned', problem, '')

    def score(self, problem: Problem, completion: str) -> Parts:
        raise TypeError('an agent returns its reward itself')


def _problems(key: str, source: Any) -> List[Problem]:
    if isinstance(source, str) and ':' in source and not source.endswith(']'):
        try:
            source = import_name(source, f'env.task.{key}')()
        except ConfigError:
            if '/' not in source:  # of a data set of the hub, owner/name:config
                raise
    found = []
    for _, row in read_rows(key, source):
        prompt = next((row[name] for name in ('prompt', 'question', 'messages') if is_prompt(row.get(name))), repr(row))
        found.append(Problem(prompt, str(row.get('answer', '')), dict(row=row, kind=row.get('kind', ''))))
    if not found:
        raise ConfigError(f'env.task.{key} = {shown(source)}: there is no problem.')
    return found
