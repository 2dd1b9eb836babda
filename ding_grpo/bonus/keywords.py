"""Keys of a config as keyword arguments: ``group_size=8`` is ``policy.group_size``."""
import inspect
from typing import Any, Callable, Dict, Iterable, Iterator, List, Tuple

from ding.utils import ENV_REGISTRY, MODEL_REGISTRY
from easydict import EasyDict

from ding_common import ConfigError, nearest
from ding_common.config.env_config import OF_EVERY_ENV
from ding_common.config.settings import CREATE, OF_MAIN, set_key
from ding_grpo.config.check_keys import schema_of
from ding_grpo.config.keys import DEFAULTS
from ding_grpo.config.models import model_type
from ding_grpo.config.moved import written
from ding_grpo.words import answer


def set_keywords(main_config: EasyDict, create_config: EasyDict, keywords: Dict[str, Any]) -> None:
    """
    Set keys of both configs by their dotted paths, ``{'policy.learn.kl.beta': 0.1}``, with or without ``policy``, or by
    their last part, ``temperature=0.8``, if only one key of policy, environment, model and task has it. A dict changes
    the keys of a section. Raises a ``ConfigError`` for an unknown name, or one that several keys have.
    """
    schema = schema_of(DEFAULTS, DEFAULTS)
    known = _by_name(_paths(main_config, create_config))
    known = {**_by_name(_keys(schema)), **known}  # DI-engine's own keys where no other has the name
    for name, value in keywords.items():
        path = _path_of(name, known)
        for key, each in _leaves_of(path, value, dict(policy=schema)):
            set_key(main_config, create_config, key, each)


def _leaves_of(path: str, value: Any, schema: Dict[str, Any]) -> Iterator[Tuple[str, Any]]:
    """The keys that a dict for a section sets; a dict that is itself the value of a key stays one."""
    section: Any = schema
    for part in path.split('.'):
        section = section.get(part) if isinstance(section, dict) else None
    if isinstance(value, dict) and section:
        for name, below in value.items():
            yield from _leaves_of(f'{path}.{name}', below, schema)
    else:
        yield path, value


def _path_of(name: str, known: Dict[str, List[str]]) -> str:
    root = name.partition('.')[0]
    if root in (*OF_MAIN, CREATE):
        return name
    if f'policy.{root}' in known.get(root, ()):  # a section, or a key of one
        return f'policy.{name}'
    paths = known.get(name, [])
    if len(paths) == 1:
        return paths[0]
    if paths:
        raise ConfigError(f"GRPO({name}=...): several keys have this name: {', '.join(paths)}. Use the whole path.")
    raise ConfigError(f'GRPO({name}=...): {answer(name) or nearest(name, known)}')


def _by_name(paths: Iterable[str]) -> Dict[str, List[str]]:
    found: Dict[str, List[str]] = {}
    for path in paths:
        found.setdefault(path.rpartition('.')[2], []).append(path)
    return found


def _paths(main_config: EasyDict, create_config: EasyDict) -> Iterator[str]:
    """The keys that a config of this policy, environment, model and task may have."""
    yield from _keys(DEFAULTS)
    env = ENV_REGISTRY.get(create_config.env.type)
    yield from (f'env.{key}' for key in {**OF_EVERY_ENV, **env.config})
    yield from _arguments(MODEL_REGISTRY.get(model_type(main_config.policy.model)), 'policy.model')
    if hasattr(env, 'task_class'):
        yield from _arguments(env.task_class(main_config.env), 'env.task')


def _keys(policy: Dict[str, Any]) -> Iterator[str]:
    return (path for path, _ in written(policy, 'policy.'))


def _arguments(made: Callable, path: str) -> Iterator[str]:
    yield from (f'{path}.{name}' for name in inspect.signature(made).parameters)
