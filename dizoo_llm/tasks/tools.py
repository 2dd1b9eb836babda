"""
A task of one turn, with functions that the model may call before it answers. With the shipped calculator:

    user:       What is 12 * 34?
    assistant:  <tool_call>{"name": "calc", "arguments": {"expression": "12 * 34"}}</tool_call>
    tool:       408
    assistant:  408
"""
import copy
import inspect
import json
import math
import typing
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from transformers.utils import get_json_schema

from ding_common import ConfigError, Rule, config_errors, import_name, nearest
from dizoo_llm.base import TASK_REGISTRY, MultiTurnTask, Problem, Reply, Task, Turn, create_task
from dizoo_llm.base.task import check_values
from dizoo_llm.data.rows import refuse_constant
from dizoo_llm.servers.tool_process import Answer, process_of

OPEN, CLOSE = '<tool_call>', '</tool_call>'
COUNTS = ('calls', 'call_errors')
PRINTABLE = ''.join(map(chr, range(32, 127))) + '\n'
_KINDS = {int: 'an integer', float: 'a number', str: 'text', bool: 'true or false'}


@TASK_REGISTRY.register('tools')
class ToolsTask(MultiTurnTask):
    """
    A turn with ``<tool_call>`` is answered by one message of the role ``tool`` for each call, or by plain text where no
    chat template is applied. A turn without one ends the episode, and the inner task scores it alone. A call that is
    malformed or cut, has wrong arguments, raises or takes too long is answered with its error. Reward parts: those of
    the inner task, and ``calls`` and ``call_errors``, numbers with the weight 0, which ``env.reward_weights`` changes.
    Where an episode has calls, a part that does not apply to its answer counts as 0.
    """

    seconds = None  # a call and the inner task have limits of their own

    def __init__(
            self,
            task: Union[Dict[str, Any], Task],
            functions: List[str],
            seconds: float = 5.0,
            max_chars: int = 1000,
            max_calls: int = 4,
            demonstration: Optional[str] = None,
            examples: int = 0,
    ) -> None:
        """
        Arguments:
            - task (:obj:`Union[Dict, Task]`): The inner task, like ``env.task``, of one turn.
            - functions (:obj:`List[str]`): ``'module:function'`` each. Parameters have the type int, float, str or \
                bool; the docstring describes each one under ``Args:``, see ``transformers.utils.get_json_schema``. \
                They run in a process of their own, see ``dizoo_llm/servers/tool_process.py``: they must not use torch \
                or keep anything between calls.
            - max_chars (:obj:`int`): Maximum length of an answer in characters; the rest is dropped.
            - max_calls (:obj:`int`): Maximum number of calls of a turn; others are answered with an error.
            - demonstration (:obj:`Optional[str]`): ``'module:function'``: the next turn for supervised learning, \
                with the arguments of ``MultiTurnTask.demonstration``. None: the answer of the inner task.
            - examples (:obj:`int`): Number of demonstrated dialogues that each prompt begins with. They are the first \
                problems of the inner task, which are not trained then.
        """
        check_values(
            seconds=(seconds, Rule.number(0, 3600, True)),
            max_chars=(max_chars, Rule.integer(1, 1_000_000)),
            max_calls=(max_calls, Rule.integer(1, 1000)),
            examples=(examples, Rule.integer(0)),
            functions=(functions or None, Rule('a list of at least one', bool)),
        )
        if not isinstance(task, Task):
            task = create_task(task, 'env.task.task')
        if task.has_turns:
            raise ConfigError(f'env.task.task: {type(task).__name__} has several turns, must be a task of one turn.')
        self._max_chars, self._max_calls = max_chars, max_calls
        self._functions: Dict[str, Callable] = {}
        for name in functions:
            function = import_name(name, 'env.task.functions')
            _check_function(function, name)
            if function.__name__ in self._functions:
                raise ConfigError(f'env.task.functions = {name!r}: the name {function.__name__!r} occurs twice.')
            self._functions[function.__name__] = function
        self._process = process_of(tuple(self._functions.values()), seconds, max_chars)
        self._demonstration = None if demonstration is None else import_name(demonstration, 'env.task.demonstration')
        self._take(task)
        self._shown: List[Dict[str, str]] = []
        self._skipped = examples
        if examples >= len(task):
            raise ConfigError(
                f'env.task.examples = {examples}: of {len(task)} problems none is left for training. Lower it.'
            )
        for i in range(examples):
            self._shown += self.dialogue(task.checked_problem(i))

    def _take(self, task: Task) -> None:
        self._task, self.return_part, self.listed = task, task.return_part, task.listed
        twice = sorted(set(task.weights) & set(COUNTS))
        if twice:
            raise ConfigError(
                f'env.task.task: its reward has a part {twice[0]!r}, a name that is used here. Rename it.'
            )
        self.weights = {**task.weights, **dict.fromkeys(COUNTS, 0.0)}
        self.chars = None if task.chars is None else ''.join(dict.fromkeys(task.chars + PRINTABLE))

    @property
    def tools(self) -> List[Dict[str, Any]]:
        return [get_json_schema(function) for function in self._functions.values()]

    def __len__(self) -> int:
        return len(self._task) - self._skipped

    def problem(self, index: int) -> Problem:
        return self._task.problem(index + self._skipped).after(self._shown)

    def begin(self, problem: Problem, seed: int) -> None:
        return None

    def respond(self, problem: Problem, state: None, turn: Turn) -> Reply:
        called = turn.text.split(OPEN)[1:]
        if not called:
            parts = self._task.checked_score(problem, turn.text, turn.cut)
            return Reply('', dict(parts, calls=0.0, call_errors=0.0), done=True)
        if turn.cut:
            answers = [Answer('error: the turn was cut, nothing was called', True)]
        else:
            answers = [self._call(text) for text in called[:self._max_calls]]
            more = Answer(f'error: a turn may have {self._max_calls} calls', True)
            answers += [more] * (len(called) > self._max_calls)
        parts = dict.fromkeys(self._task.weights, 0.0)
        parts.update(calls=float(len(called)), call_errors=float(sum(answer.failed for answer in answers)))
        return Reply([dict(role='tool', content=answer.text[:self._max_chars]) for answer in answers], parts)

    def demonstration(self, problem: Problem, turns: Sequence[Tuple[str, str]] = ()) -> str:
        if self._demonstration is None:
            return self._task.demonstration(problem)
        return self._demonstration(problem, turns)

    def evaluation(self) -> 'ToolsTask':
        other = copy.copy(self)
        other._take(self._task.evaluation())
        other._skipped = 0
        return other

    def _call(self, text: str) -> Answer:
        body, closed, _ = text.partition(CLOSE)
        try:
            if not closed:
                raise ValueError(f'the call does not end with {CLOSE}')
            name, arguments = _parse(body)
            if name not in self._functions:
                raise ValueError(f'there is no function {name!r:.80}, only {", ".join(self._functions)}')
            arguments = _checked(self._functions[name], arguments)
        except ValueError as error:
            return Answer(f'error: {error}', True)
        return self._process.call(name, arguments)


def _check_function(function: Any, name: str) -> None:
    """Require types and descriptions of all arguments."""
    where = f'env.task.functions = {name!r}'
    if not inspect.isfunction(function):
        raise ConfigError(f'{where}: must be a function.')
    with config_errors(f'{where}: cannot be offered to a model', '.'):
        hints = typing.get_type_hints(function)
        get_json_schema(function)  # raises for a missing hint or description
    for key, parameter in inspect.signature(function).parameters.items():
        if hints[key] not in _KINDS or parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f'{where}: the argument {key} must have a name and the type int, float, str or bool.')


def _parse(text: str) -> Tuple[str, Dict[str, Any]]:
    """Name and arguments of a call in JSON. A name that occurs twice, NaN and infinity are errors."""

    def once(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError('a name occurs twice')
        return dict(pairs)

    try:
        call = json.loads(text, object_pairs_hook=once, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the call is not valid JSON ({' '.join(str(error).split()):.100})") from error
    if not isinstance(call, dict) or set(call) != {'name', 'arguments'} or not isinstance(call['name'], str) or \
            not isinstance(call['arguments'], dict):
        raise ValueError('a call must be {"name": "...", "arguments": {...}}')
    return call['name'], call['arguments']


def _checked(function: Callable, arguments: Dict[str, Any]) -> Dict[str, Any]:
    """The arguments, if they fit the function's types; integers become floats where a float is expected."""
    parameters, hints = inspect.signature(function).parameters, typing.get_type_hints(function)
    for key in arguments:
        if key not in parameters:
            raise ValueError(f'{function.__name__} has no argument {key!r:.80}; {nearest(key[:80], parameters)}')
    checked = {}
    for key, parameter in parameters.items():
        if key not in arguments:
            if parameter.default is parameter.empty:
                raise ValueError(f'{function.__name__} needs the argument {key}')
            continue
        value, kind = arguments[key], hints[key]
        if kind is float and type(value) is int and abs(value) < 2 ** 1023:
            value = float(value)
        if type(value) is not kind or kind is float and not math.isfinite(value):
            raise ValueError(f'{function.__name__}: {key} must be {_KINDS[kind]}, not {value!r:.80}')
        checked[key] = value
    return checked
