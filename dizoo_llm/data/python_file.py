"""
A task in a user's Python file, the ``path`` of a file task. The file is executed, once in a process:

    def problems():
        return [dict(prompt=f'{n} + 1 =', answer=n + 1) for n in range(9)]

    def score(problem, completion):
        return float(completion.strip() == str(problem['answer']))

    def feedback(problem, completion):  # optional, for a policy that teaches itself
        return f'{completion} is not right'
"""
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from ding_common import ConfigError, Rule, check_not_async, describe
from dizoo_llm.base.task import check_return_part
from dizoo_llm.rewards.functions import names_of


class PythonFile(NamedTuple):
    """What a file defines for a task: ``score`` is its scorer by the name of its part; others are None if missing."""
    score: Dict[str, Callable]
    weights: Optional[Dict[str, float]]
    return_part: Optional[str]
    feedback: Optional[Callable]  # (problem, completion) -> what is wrong, see ``Task.feedback``
    words: Any
    chars: Any


def is_python(source: Any) -> bool:
    """Whether a source of problems is a Python file."""
    return isinstance(source, str) and source.endswith('.py')


def read_python(path: str, scored: bool) -> PythonFile:
    """
    What a Python file defines beside its problems. ``score`` may return a dict of the parts that ``weights`` names. In
    its place the file may define ``score_batch(problems, completions)``, which gets lists and returns a list of such
    scores; an exception in this list says that a completion cannot be scored. ``scored`` tells whether it is used.
    """
    where = f'env.task.path = {path!r}'
    names = names_of(path, 'env.task.path')
    score = names.get('score_batch', names.get('score'))
    if scored and not callable(score):
        raise ConfigError(f'{where}: must define a function score or score_batch, or set env.task.reward.')
    weights, return_part = (names.get(name) if scored else None for name in ('weights', 'return_part'))
    given = weights.items() if isinstance(weights, dict) else ()
    known = [name for name, weight in given if isinstance(name, str) and Rule.number().holds(weight)]
    if weights is not None and (not known or len(known) < len(given)):
        raise ConfigError(f'{where}: weights = {weights!r:.200}, must be a dict of names and numbers.')
    check_return_part(return_part, weights or dict(score=1.0), f'{where}: return_part')
    feedback = names.get('feedback')
    return PythonFile(dict(score=score), weights, return_part, feedback, names.get('words'), names.get('chars'))


def rows_of(path: str, key: str) -> List[Any]:
    """The problems of a Python file, which the config key ``key`` names."""
    where = f'{key} = {path!r}'
    problems = names_of(path, key).get('problems')
    if not callable(problems):
        raise ConfigError(f'{where}: must define a function problems.')
    check_not_async(problems, f'{where}: problems')
    try:
        return list(problems())
    except (Exception, SystemExit) as error:  # a user's function may raise anything
        raise ConfigError(f'{where}: problems() raised {describe(error)}') from error
