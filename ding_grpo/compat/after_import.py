"""What changes in a module of DI-engine that is imported later than this package, once it is."""
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Optional


class AfterImport(MetaPathFinder):
    """Calls a function with a module after its import, once."""

    def __init__(self, name: str, function: Callable[[ModuleType], None]) -> None:
        self._name, self._function = name, function

    def find_spec(self, name: str, path: Any = None, target: Optional[ModuleType] = None) -> Optional[ModuleSpec]:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        others = [f for f in sys.meta_path if hasattr(f, 'find_spec')]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None:
            spec.loader.exec_module = self._and_then(spec.loader.exec_module)
        return spec

    def _and_then(self, execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._function(module)

        return exec_module


def watch(name: str, function: Callable[[ModuleType], None]) -> None:
    """Call the function with the module of this name, now or after its import."""
    if name in sys.modules:
        function(sys.modules[name])
    else:
        sys.meta_path.insert(0, AfterImport(name, function))
