"""
When ``ding_grpo`` registers its parts in DI-engine: with DI-engine's import, or at once if that is imported already.
Until then ``import ding_grpo`` does nothing, so that the losses of ``ding_grpo.rl_utils`` need torch alone.
"""
import sys
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from types import ModuleType
from typing import Callable, ContextManager

from .after_import import Finder


class WithDing(Finder):
    """Registers the parts once ``ding`` has been imported. If a part of this package imports it, such as
    ``ding_grpo.policy``, that part must be complete before, and so must the one that imports that part."""

    def __init__(self) -> None:
        self._under_way = 0

    def wants(self, name: str) -> bool:
        return name == 'ding' or name.startswith('ding_grpo.') and not name.startswith('ding_grpo.rl_utils')

    def run(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        self._under_way += 1
        try:
            execute(module)
            if module.__name__ == 'ding':
                _import_the_rest()
        finally:
            self._under_way -= 1
        if self._under_way == 0 and 'ding' in sys.modules and self in sys.meta_path:
            sys.meta_path.remove(self)
            register()


def _import_the_rest() -> None:
    from ding_common import import_ding
    with _of_a_program():
        import_ding()


def register() -> None:
    """Import and so register all parts and those of installed plugins, and change DI-engine."""
    _import_the_rest()
    with _of_a_program():
        for part in ('collect', 'envs', 'evaluate', 'model', 'policy'):
            import_module(f'ding_grpo.{part}')
        if find_spec('ding_grpo.extras') is not None:  # the core lives without it
            import_module('ding_grpo.extras.ppo_kl')
        from . import patches
        patches.apply()
        for plugin in entry_points(group='ding_grpo.plugins'):
            plugin.load()


def _of_a_program() -> ContextManager:
    """What a program of this package does while it imports. Other processes collect no garbage meanwhile."""
    from ding_common import importing, uncollected
    return importing() if is_program() else uncollected()


def is_program() -> bool:
    """Whether this package runs as a program (``python -m``)."""
    return sys.argv[:1] == ['-m'] and any(arg.partition('.')[0] == 'ding_grpo' for arg in sys.orig_argv)


def register_with_ding() -> None:
    """Register now if DI-engine is imported or this package runs as a program, else later."""
    if 'ding' in sys.modules or is_program():
        register()
    else:
        sys.meta_path.insert(0, WithDing())
