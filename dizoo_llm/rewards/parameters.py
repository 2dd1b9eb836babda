"""Which argument each parameter of a user's scorer gets."""
import inspect
from typing import Any, Callable, Dict, List, Optional

from ding_common import ConfigError, check_not_async
from dizoo_llm.base import Problem
from dizoo_llm.base.task import COMPLETION, PROBLEM

ROW = 'row'  # entry of a problem's metadata: all columns
# The keys of problems, each with the number of the first problem that lacks it, None if all have it.
Keys = Dict[str, Optional[int]]


def row_of(problem: Problem) -> Dict[str, Any]:
    return problem.metadata.get(ROW, problem.metadata)


def add_keys(keys: Keys, number: int, row: Dict) -> None:
    """Add the problem of this number, the next one, to the keys of those before it."""
    for key in [key for key in row if isinstance(key, str) and key not in keys]:
        keys[key] = None if number == 0 else 0
    for key in keys.keys() - row.keys():
        keys[key] = number if keys[key] is None else keys[key]


def by_name(function: Callable, known: Keys, batch: bool, where: str) -> Callable[[Any, Any], Any]:
    """
    A scorer as a function of problem and completion, or of lists of them for a ``batch``. Its parameters are bound by
    name: ``problem``, ``completion`` and the ``known`` keys of the problems; lists also by the plural, such as
    ``answers``. Two required parameters with other names are problem and completion, in this order. One that is async
    gives an awaitable. Raises a ``ConfigError``, which begins with ``where``, if a required parameter gets nothing, or
    none gets the completion.
    """
    if batch:
        check_not_async(function, where)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of some builtins
        return function
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    others = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if not known or parameters and not named and not others:  # without a problem, or *args
        return function
    keys = {key: key for key in known if key not in (*PROBLEM, *COMPLETION)}
    key_of = {**({f'{key}s': key for key in keys} if batch else {}), **keys}
    where = f'{where}{inspect.signature(function)}'
    required = [p for p in named if p.default is p.empty]
    first = _by_position(named, required, others, key_of, where)
    for p in required:
        key = key_of.get(p.name)
        lack = known.get(key)
        if lack is not None:
            raise ConfigError(f'{where}: problem {lack} has no key {key!r}. Add it, or give the parameter a default.')
    rest = [p for p in named if p not in first]
    wanted = {p.name: key_of[p.name] for p in rest if p.name in key_of}
    roles = [p.name for p in rest if p.name in (*PROBLEM, *COMPLETION)]
    if others:
        wanted.update((key, key) for key in keys if key not in wanted.values())
    if others and not first:
        roles += [role[batch] for role in (PROBLEM, COMPLETION) if not set(role) & set(roles)]
    in_order = [p for p in rest if p.kind is p.POSITIONAL_ONLY]

    def score(problem: Any, completion: Any) -> Any:
        if batch:
            values = {name: [row.get(key) for row in problem] for name, key in wanted.items()}
        else:
            values = {name: problem[key] for name, key in wanted.items() if key in problem}
        values.update((name, problem if name in PROBLEM else completion) for name in roles)
        begin = [problem, completion] if first else []
        begin += [values.pop(p.name, p.default) for p in in_order]
        return function(*begin, **values)

    return score


def _by_position(
        named: List[inspect.Parameter], required: List[inspect.Parameter], others: bool, key_of: Dict[str, str],
        where: str
) -> List[inspect.Parameter]:
    """The parameters that get problem and completion by position: two, or none if all are bound by name."""
    missing = [p.name for p in required if p.name not in {*key_of, *PROBLEM, *COMPLETION}]
    if not missing and (others or any(p.name in COMPLETION for p in named)):
        return []
    if len(required) == 2 and not any(p.kind is p.KEYWORD_ONLY for p in required):
        if required[0].name not in {*key_of, *COMPLETION} and required[1].name not in {*key_of, *PROBLEM}:
            return required
    told = f"nothing is known to give to {', '.join(map(repr, missing))}" if missing else 'none gets the completion'
    keys = ', '.join(dict.fromkeys(key_of.values()))
    raise ConfigError(
        f"{where}: {told}. Name the parameters 'problem', 'completion' or a key of the problems ({keys:.200}), in any "
        'order, such as (problem, completion) or (completion, answer, **others); or use two other names, for problem '
        'and completion in this order.'
    )
