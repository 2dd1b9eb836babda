"""
Reward functions as people have them. The names of a function's parameters tell whose form it has:

- this project's: ``problem`` (a dict of all columns), ``completion`` (a text), and columns; also ``async``;
- the same for a batch: ``problems``, ``completions``, and columns, all lists, or any names in ``score_batch``;
- TRL's: ``prompts``, ``completions``, and columns, all lists, where a completion of a chat is messages; also ``async``;
- verl's: ``solution_str``, ``data_source``, ``ground_truth``, ``extra_info``; the result may be a dict with ``score``;
  also ``async``.
"""
import inspect
import os
from functools import partial, wraps
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ding_common import ConfigError, check_arguments, import_name, is_async, nearest, run_file
from dizoo_llm.base import Problem
from dizoo_llm.base.awaited import await_one

from .code import Code
from .judge import Judge
from .parameters import Keys, by_name, row_of
from .tags import format_reward

NAMED: Dict[str, Callable] = dict(tags=format_reward)
KINDS: Dict[str, type] = dict(code=Code, judge=Judge)  # of entries with keys
_FILES: Dict[Tuple[str, int], Dict[str, Any]] = {}  # names of files that this process has run, by path and change


class Reward(NamedTuple):
    """A function that scores completions, one or many at a time."""
    name: str  # of its part of the reward
    in_batches: bool  # whether it takes lists of problems and of completions, and returns a list
    score: Callable[[Any, Any], Any]  # (problem, completion) -> number, or None if it does not apply
    awaits: bool = False  # whether ``score`` returns an awaitable of it
    limits_each: bool = False  # whether each score of a batch has a limit of its own


def entries_of(given: Any) -> List[Tuple[Optional[str], Any]]:
    """
    The entries of a config with their names, None where it gives none: one entry, a list, or a dict by name. An entry
    may be a dict with a ``type`` of ``KINDS``.
    """
    if isinstance(given, dict) and given.get('type') not in KINDS:
        return list(given.items())
    return [(None, entry) for entry in (given if isinstance(given, (list, tuple)) else [given])]


def make_rewards(given: Any, keys: Keys, where: str, known: Dict[str, Reward]) -> List[Reward]:
    """
    The functions that a config gives, see ``entries_of``. An entry is a function, ``'module:function'``,
    ``'file.py:function'``, a dict with a ``type`` of ``KINDS``, or one of ``NAMED`` and ``known``. Without a name, its
    part has the function's, or the type. Raises a ``ConfigError`` if there is no such function, its parameters have
    none of the forms, or a name occurs twice.
    """
    rewards = [_reward(name, entry, keys, where, known) for name, entry in entries_of(given)]
    check_twice([reward.name for reward in rewards], where)
    if not rewards:
        raise ConfigError(f'{where} = {given!r}: must have a function.')
    return rewards


def check_twice(names: List[str], where: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f'{where}: the name {name!r} occurs twice. Give names: dict(name=function, ...).')


def name_of(function: Callable) -> str:
    return getattr(function, '__name__', type(function).__name__)


def _reward(name: Optional[str], entry: Any, keys: Keys, where: str, known: Dict[str, Reward]) -> Reward:
    if isinstance(entry, str) and entry in known:
        return known[entry]._replace(name=name or known[entry].name)
    if isinstance(entry, dict):
        return _made(name, entry, keys, where)
    names = ', '.join(map(repr, [*known, *NAMED]))
    entry = NAMED.get(entry, entry) if isinstance(entry, str) else entry
    function = callable_of(entry, where, f"a function, 'module:function', 'file.py:function', or one of {names}")
    own = name_of(function).replace('<lambda>', 'reward')
    told = f'{where}: {own}'
    parameters = _parameters(function)
    batch = 'problems' in parameters or own == 'score_batch'
    if 'solution_str' in parameters:
        return Reward(name or own, False, _of_verl(function), is_async(function))
    if {'prompts', 'completions'} & set(parameters) and not batch:
        return Reward(name or own, True, _of_trl(function, keys, told))
    bound = by_name(function, keys, batch, told)
    if batch:
        return Reward(name or own, True, lambda problems, completions: bound(list(map(row_of, problems)), completions))
    score = lambda problem, completion: bound(row_of(problem), completion)  # noqa: E731
    return Reward(name or own, False, score, is_async(function))


def _made(name: Optional[str], entry: Dict[str, Any], keys: Keys, where: str) -> Reward:
    """The reward of a dict whose other keys are arguments of the class of its ``type``."""
    kind = entry.get('type')
    where = where if name is None else f'{where}.{name}'
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f'{where}.type = {kind!r:.80}: {nearest(str(kind), KINDS)}')
    arguments = {key: value for key, value in entry.items() if key != 'type'}
    check_arguments(arguments, KINDS[kind], where)
    try:
        made = KINDS[kind](**arguments, keys=keys, where=where)
    except TypeError as error:
        raise ConfigError(f'{where}: {error}') from error
    if isinstance(made, Code):
        return Reward(name or kind, True, made.scores, limits_each=True)
    return Reward(name or kind, False, made.score, awaits=True)


def callable_of(entry: Any, where: str, allowed: str) -> Callable:
    """A function or class, or that of a name, ``'module:function'`` or ``'file.py:function'``; ``allowed`` is for the
    message about anything else."""
    found = _load(entry, where) if isinstance(entry, str) and ':' in entry else entry
    if not callable(found):
        raise ConfigError(f'{where} = {entry!r:.200}: must be {allowed}.')
    return found


def _load(entry: str, where: str) -> Callable:
    file, _, name = entry.rpartition(':')
    if not file.endswith('.py'):
        return import_name(entry, where, coroutine=True)
    of_file = names_of(file, where)
    if not callable(of_file.get(name)):
        there = [each for each, value in of_file.items() if inspect.isfunction(value)]
        raise ConfigError(f'{where} = {entry!r}: the file has no function {name!r}; {nearest(name, there)}')
    return of_file[name]


def names_of(file: str, where: str) -> Dict[str, Any]:
    """The names of a Python file, which runs once in a process: all its environments share what it loads."""
    key = os.path.realpath(file), os.stat(file).st_mtime_ns if os.path.exists(file) else 0
    if key not in _FILES:
        _FILES[key] = run_file(file, where)
    return _FILES[key]


def _parameters(function: Callable) -> List[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # of some builtins
        return []


def _of_verl(function: Callable) -> Callable[[Problem, str], Any]:
    parameters = inspect.signature(function).parameters
    others = any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    def called(problem: Problem, completion: str) -> Any:
        row = row_of(problem)
        model = row.get('reward_model')
        truth = model.get('ground_truth') if isinstance(model, dict) else row.get('ground_truth', problem.answer)
        given = dict(solution_str=completion, ground_truth=truth)
        given.update((key, row.get(key)) for key in ('data_source', 'extra_info'))
        return function(**{key: value for key, value in given.items() if others or key in parameters})

    def number(scored: Any) -> Any:
        return scored['score'] if isinstance(scored, dict) else scored

    async def awaited(problem: Problem, completion: str) -> Any:
        return number(await called(problem, completion))

    return awaited if is_async(function) else lambda problem, completion: number(called(problem, completion))


def _of_trl(function: Callable, keys: Keys, where: str) -> Callable[[List[Problem], List[str]], Any]:
    bound = by_name(_awaited(function) if is_async(function) else function, {**keys, 'prompt': None}, True, where)

    def score(problems: List[Problem], completions: List[str]) -> Any:
        rows = [{**row_of(problem), 'prompt': problem.prompt} for problem in problems]
        said = [
            text if isinstance(problem.prompt, str) else [dict(role='assistant', content=text)]
            for problem, text in zip(problems, completions)
        ]
        return bound(rows, said)

    return score


def _awaited(function: Callable) -> Callable:
    """An ordinary function."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return await_one(partial(function, *args, **kwargs))

    return run
