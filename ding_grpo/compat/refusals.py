"""Ways of DI-engine that cannot train ``grpo``: each ends in one line, with a way that can."""
import sys
from functools import wraps
from types import ModuleType
from typing import Any, Callable

import click
import ding.entry

from ding_common import ConfigError, read_config_file
from ding_grpo.data.capability import group_policy, is_grpo

from .after_import import watch

MODES = ('-m serial', '-m serial_onpolicy', '-m eval')  # of the command ``ding`` that train or evaluate grpo
PREFIXES = ('serial_pipeline_', 'parallel_pipeline', 'dist_')  # of the functions behind all other modes


def refuse_modes() -> None:
    """If the bare ``ding`` command imports this package for another mode, which it does while it reads the config."""
    context = click.get_current_context(silent=True)
    if context is not None and context.params.get('mode') and f"-m {context.params['mode']}" not in MODES:
        _refuse_pipelines(ding.entry)
        watch('ding.entry.dist_entry', _refuse_pipelines)


def _refuse_pipelines(module: ModuleType) -> None:
    for name, pipeline in list(vars(module).items()):
        if name.startswith(PREFIXES) and callable(pipeline):
            setattr(sys.modules[pipeline.__module__], name, _without_groups(pipeline))


def _without_groups(pipeline: Callable) -> Callable:

    @wraps(pipeline)
    def checked(config: Any, *args: Any, **kwargs: Any) -> Any:
        check_mode(pipeline.__name__, read_config_file(config) if str(config).endswith('.py') else config)
        return pipeline(config, *args, **kwargs)

    return checked


def check_mode(name: str, configs: Any) -> None:
    """Raise a ``ConfigError`` if configs are of grpo, and a mode or a pipeline cannot train it."""
    policies = [part.get('policy', {}) for part in configs] if isinstance(configs, (list, tuple)) else []
    if name not in MODES and any(is_grpo(str(policy.get('type'))) for policy in policies):
        raise refusal(name)


def refusal(name: str) -> ConfigError:
    """The error for a mode or a pipeline that cannot train grpo."""
    return ConfigError(
        f'{name}: grpo learns from whole groups that its own weights have just sampled. Use ding -m '
        'serial_onpolicy, or -m serial with a replay buffer; ditask for several processes '
        '(examples/middleware.py).'
    )


def refuse_groups(module: ModuleType) -> None:
    """For the collectors of ``ding.framework``, which cut trajectories anywhere, and miss keys of the config."""
    for kind in (module.StepCollector, module.EpisodeCollector):
        kind.__init__ = _refusing(kind.__init__, kind.__name__)


def _refusing(init: Callable, name: str) -> Callable:

    def __init__(self: Any, cfg: Any, policy: Any, *args: Any, **kwargs: Any) -> None:
        if group_policy(policy) is not None:
            raise ConfigError(
                f'{name}: grpo learns from whole groups, which only group_collector makes. Use group_collector and '
                'group_trainer of ding_grpo.framework (examples/middleware.py).'
            )
        init(self, cfg, policy, *args, **kwargs)

    return __init__
