"""What is done at the import of modules that come after this package."""
import copy
import sys
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Optional


class Finder(MetaPathFinder):
    """Changes how modules that the other finders find are executed at their import: those that ``wants`` names, by
    ``run``, which is called with the function that executes a module, and with the module."""

    def find_spec(self, name: str, path: Any = None, target: Optional[ModuleType] = None) -> Optional[ModuleSpec]:
        if not self.wants(name):
            return None
        others = [f for f in sys.meta_path if f is not self and hasattr(f, 'find_spec')]  # old packages add others
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            loader = copy.copy(spec.loader)  # the other one may load further modules: pytest has one for all
            loader.exec_module = partial(self.run, spec.loader.exec_module)
            spec.loader = loader
        return spec


class AfterImport(Finder):
    """Calls a function with a module after its import, once."""

    def __init__(self, name: str, function: Callable[[ModuleType], None]) -> None:
        self._name, self._function = name, function

    def wants(self, name: str) -> bool:
        return name == self._name

    def run(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        execute(module)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._function(module)


def watch(name: str, function: Callable[[ModuleType], None]) -> None:
    """Call the function with the module of this name, now or after its import."""
    if name in sys.modules:
        function(sys.modules[name])
    else:
        sys.meta_path.insert(0, AfterImport(name, function))
