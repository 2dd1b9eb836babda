"""Which argument each parameter of a user's scorer gets."""
import inspect
from typing import Any, Callable, Dict, List

from ding_common import ConfigError, check_not_async

# Names of the two arguments that every scorer gets.
PROBLEM, COMPLETION = ('problem', 'problems'), ('completion', 'completions')


def by_name(function: Callable, rows: List[Dict], batch: bool, where: str) -> Callable[[Any, Any], Any]:
    """
    Overview:
        A scorer as a function of problem and completion, or of lists of them. Its parameters are bound by name: \
        ``problem``, ``completion`` and the keys of the problems; lists also by the plural, such as ``answers``. Two \
        required parameters with other names are problem and completion, in this order.
    Arguments:
        - function (:obj:`Callable`): The scorer.
        - rows (:obj:`List[Dict]`): All problems.
        - batch (:obj:`bool`): Whether it gets lists: of problems, of completions, and of the values of a key.
        - where (:obj:`str`): Beginning of messages.
    Raises:
        - ConfigError: If a required parameter gets nothing, none gets the completion, or a problem lacks a key that a \
            required parameter names, or the scorer is defined by ``async def``.
    """
    check_not_async(function, where)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of some builtins
        return function
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    required = [p for p in named if p.default is p.empty]
    others = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if not rows or parameters and not named and not others:  # without a problem, or *args
        return function
    keys = {key: key for row in rows for key in row if isinstance(key, str) and key not in (*PROBLEM, *COMPLETION)}
    key_of = {**({f'{key}s': key for key in keys} if batch else {}), **keys}
    known = {*key_of, *PROBLEM, *COMPLETION}
    missing = [p.name for p in required if p.name not in known]
    first = []
    if missing or not (others or any(p.name in COMPLETION for p in named)):
        first = required
        if len(first) != 2 or first != named[:2] or any(p.kind is p.KEYWORD_ONLY for p in first) or \
                first[0].name in known.difference(PROBLEM) or first[1].name in known.difference(COMPLETION):
            raise ConfigError(
                f"{where}{inspect.signature(function)}: {_wrong(missing)}. Name the parameters 'problem', 'completion' "
                f"or a key of the problems ({', '.join(keys):.200}), in any order, such as "
                f'(problem, completion) or (completion, answer, **others); or use two other names, for problem and '
                'completion in this order.'
            )
    for p in required:
        lack = next((i for i, row in enumerate(rows) if p.name in key_of and key_of[p.name] not in row), None)
        if lack is not None:
            raise ConfigError(
                f'{where}{inspect.signature(function)}: problem {lack} has no key {key_of[p.name]!r}. Add it, or give '
                'the parameter a default.'
            )
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


def check_order(function: Callable, where: str) -> None:
    """
    Overview:
        Require that the first two parameters of a method, which gets problem and completion in this order, do not say \
        the opposite.
    Raises:
        - ConfigError: If they do.
    """
    names = [*inspect.signature(function).parameters][:2]
    if names[:1] and names[0] in COMPLETION or names[1:] and names[1] in PROBLEM:
        raise ConfigError(f"{where}({', '.join(names)}): gets the problem first, then the completion. Swap them.")


def _wrong(missing: List[str]) -> str:
    return f"nothing is known to give to {', '.join(map(repr, missing))}" if missing else 'none gets the completion'
