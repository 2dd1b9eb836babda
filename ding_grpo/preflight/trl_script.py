"""What a script gives to TRL's ``GRPOTrainer``. The script runs until it makes the trainer, and nothing is trained."""
import asyncio
import inspect
import os
import sys
from contextlib import contextmanager
from itertools import islice
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ding_common import ConfigError, describe, is_async

from .stand_in import Anything, Made, accuracy_reward, in_place_of_trl

MOST = 10_000  # rows of a data set without a length that are read
SAMPLES = ('rollout_func', 'environment_factory', 'tools')  # which change what a completion is
STATE = SimpleNamespace(global_step=0, max_steps=1, epoch=0.0, num_train_epochs=1)  # of a trainer before its first step


class Script(NamedTuple):
    """What the trainer of a script gets: ``task``, keys of a task of files, ``weights`` of its reward functions,
    ``model``, a name or None, ``max_new_tokens``, and ``lines`` that tell it. ``scores``: whether the reward functions
    can be examined."""
    task: Dict[str, Any]
    weights: Dict[str, float]
    model: Optional[str]
    max_new_tokens: int
    lines: List[str]
    scores: bool


@contextmanager
def trl_script(path: str, arguments: Sequence[str]) -> Iterator[Script]:
    """Run a script, as ``python SCRIPT ARGUMENTS`` does, until it makes its trainer. Within the context, what its
    reward functions import of ``trl`` is the stand-in."""
    where = f'--trl {path}'
    if not os.path.isfile(path):
        raise ConfigError(f'{where}: there is no such file.')
    kept = sys.argv, sys.path[:], sys.modules['__main__']
    module = ModuleType('__main__')
    module.__file__ = path
    try:
        with in_place_of_trl():
            sys.argv, sys.modules['__main__'] = [path, *arguments], module
            sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
            yield _read(_made(path, module, where), where)
    finally:
        sys.argv, sys.path[:], sys.modules['__main__'] = kept


def _made(path: str, module: ModuleType, where: str) -> Dict[str, Any]:
    """The arguments of the trainer that a script makes."""
    try:
        with open(path, 'rb') as f:
            exec(compile(f.read(), path, 'exec', dont_inherit=True), vars(module))
    except Made as made:
        return made.arguments
    except ImportError as error:
        raise ConfigError(f'{where}: the script needs a package that is not installed ({describe(error)}).') from error
    except (Exception, SystemExit) as error:  # a user's script may raise anything
        raise ConfigError(f'{where}: the script ended before it made a GRPOTrainer ({describe(error)}).') from error
    raise ConfigError(f'{where}: the script makes no GRPOTrainer.')


def _read(given: Dict[str, Any], where: str) -> Script:
    if given.get('train_dataset') is None:
        raise ConfigError(f'{where}: GRPOTrainer gets no train_dataset.')
    args = given.get('args')
    functions = given.get('reward_funcs')
    functions = functions if isinstance(functions, (list, tuple)) else [functions]
    weights = list(map(float, getattr(args, 'reward_weights', None) or [1.0] * len(functions)))
    if len(weights) != len(functions):
        raise ConfigError(f'{where}: {len(weights)} reward_weights for {len(functions)} reward functions.')
    rewards, named, left = _rewards(functions, weights)
    samples = [name for name in SAMPLES if given.get(name)]
    model = _name(given.get('model'))
    data = _rows(given['train_dataset'])
    task = dict(type='file', path=data, prompt='prompt', reward=rewards or _nothing)
    if given.get('eval_dataset') is not None:
        task['eval_path'] = _rows(given['eval_dataset'])
    lines = [
        f"{len(data):,} rows; model {model or 'not named'}",
        *(f'reward {name}, weight {named[name]:g}' for name in rewards),
        *(f'not examined: {told}' for told in left),
        *(f'not examined: {name}, and rewards, which need what it samples' for name in samples),
    ]
    scores = bool(rewards) and not samples
    if not rewards and not samples:
        raise ConfigError(f"{where}: no reward function can be examined ({'; '.join(left)}).")
    return Script(task, named, model, int(getattr(args, 'max_completion_length', None) or 256), lines, scores)


def _rewards(functions: Sequence[Any], weights: Sequence[float]) -> Tuple[Dict[str, Any], Dict[str, float], List[str]]:
    """Functions and weights by name, and what cannot be examined."""
    rewards, named, left = {}, {}, []
    for function, weight in zip(functions, weights):
        name = getattr(function, '__name__', type(function).__name__).replace('<lambda>', 'reward')
        why = _not_examined(function, name)
        if why is not None:
            left.append(why)
            continue
        name = name if name not in rewards else f'{name}_{len(rewards)}'
        rewards[name] = 'math_verify' if function is accuracy_reward else _of_batch(function)
        named[name] = weight
    return rewards, named, left


def _not_examined(function: Any, name: str) -> Optional[str]:
    """Why a reward cannot be examined, if it cannot."""
    if function is None:
        return 'no reward function is given'
    if isinstance(function, Anything) or isinstance(function, type) and issubclass(function, Anything):
        return f"{name}, which is TRL's own"
    if not callable(function) or hasattr(function, 'forward'):
        return f'the reward model {_name(function)}'
    parameter = inspect.signature(function).parameters.get('completion_ids')
    return None if parameter is None or parameter.default is not parameter.empty else f'{name}, which reads token ids'


def _of_batch(function: Callable) -> Callable[[List[Dict[str, Any]], List[str]], List[Any]]:
    """A function of rows and texts, which gets them as from TRL: columns by keyword, messages for messages."""

    def score_batch(problems: List[Dict[str, Any]], completions: List[str]) -> List[Any]:
        columns = {key: [row[key] for row in problems] for key in problems[0] if key not in ('prompt', 'completion')}
        prompts = [row['prompt'] for row in problems]
        said = [
            text if isinstance(prompt, str) else [dict(role='assistant', content=text)]
            for prompt, text in zip(prompts, completions)
        ]
        columns.update(completion_ids=[[] for _ in said], trainer_state=STATE, log_extra=_nothing, log_metric=_nothing)
        scores = function(prompts=prompts, completions=said, **columns)
        return asyncio.run(scores) if is_async(function) else scores

    return score_batch


def _nothing(problem: Any, completion: Any) -> float:
    """In place of what a trainer logs with, and of a reward that is not examined."""
    return 0.0


def _rows(data: Any) -> Any:
    """A data set, or the first rows of one that has no length; the first of several by name."""
    if isinstance(data, dict):
        return _rows(next(iter(data.values())))
    return data if hasattr(data, '__len__') else list(islice(data, MOST))


def _name(model: Any) -> Optional[str]:
    """The name of a model, or of an object that was loaded by it."""
    if isinstance(model, Anything):
        model = next(iter(model.given), None)
    name = getattr(model, 'name_or_path', model)
    return name if isinstance(name, str) else None
