"""Tasks by name."""
from typing import Any, Dict, Optional

from ding.utils import import_module
from ding.utils.registry import Registry

from ding_common import ConfigError, Rule, check_arguments, nearest

from .task import Task, check_scorer


class TaskRegistry(Registry):
    """Tasks by name. A class that is defined again, as by a notebook's cell that runs twice, replaces the former."""

    def register(self, module_name: Optional[str] = None, module: Any = None, force_overwrite: bool = False) -> Any:
        """As in DI-engine's ``Registry``. Raises a ``ConfigError`` if another class has the name."""
        if module is None:
            return lambda kind: self.register(module_name, kind, force_overwrite)
        name = module.__name__ if module_name is None else module_name
        former = self[name] if name in self else module
        if not force_overwrite and (former.__module__, former.__qualname__) != (module.__module__, module.__qualname__):
            raise ConfigError(
                f'TASK_REGISTRY.register({name!r}): {former.__module__}.{former.__qualname__} has this name. Choose '
                'another, or set force_overwrite=True to replace it.'
            )
        super().register(name, module, force_overwrite=True)
        return module


TASK_REGISTRY = TaskRegistry()


def create_task(cfg: Dict, where: str = 'env.task') -> Task:
    """
    Overview:
        Build a registered task.
    Arguments:
        - cfg (:obj:`Dict`): ``type`` is the registered name, ``import_names`` lists the modules that register it, \
            and all other keys are arguments of the task's constructor.
    Raises:
        - ConfigError: If the task is unknown, rejects its arguments, cannot score completions, or has no problem for \
            training or evaluation.
    """
    try:
        return _create(cfg)
    except ConfigError as error:
        if where == 'env.task':
            raise
        raise ConfigError(str(error).replace('env.task', where)) from error


def task_class(cfg: Dict) -> type:
    """The registered class of a task; see ``create_task``."""
    name, modules = cfg.get('type'), cfg.get('import_names', [])
    if not Rule.modules().holds(modules):
        raise ConfigError(f'env.task.import_names = {modules!r}: must be {Rule.modules().allowed}.')
    import_module(modules)
    if name == 'python' and name not in TASK_REGISTRY:
        raise ConfigError("env.task.type = 'python' is 'file' now: dict(type='file', path='my_task.py').")
    if not Rule.registered(TASK_REGISTRY).holds(name):
        raise ConfigError(f'env.task.type = {name!r}: unknown task; {nearest(name, TASK_REGISTRY)}')
    return TASK_REGISTRY.get(name)


def _create(cfg: Dict) -> Task:
    kind = task_class(cfg)
    args = {key: value for key, value in cfg.items() if key not in ('type', 'import_names')}
    check_arguments(args, kind, 'env.task')
    try:
        task = kind(**args)
    except TypeError as error:
        raise ConfigError(f'env.task = {dict(cfg)!r}: {error}') from error
    check_scorer(task)
    for name, part in (('training', task), ('evaluation', task.evaluation())):
        if len(part) == 0:
            raise ConfigError(f'env.task = {dict(cfg)!r}: the task has no problem for {name}.')
    return task
