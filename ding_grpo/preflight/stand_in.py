"""
A stand-in for ``trl``, with which a script runs until it makes its ``GRPOTrainer``. ``trl`` itself is not imported, and
need not be installed. Names that are not defined here are classes that take and give anything.
"""
import importlib
import sys
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Dict, Iterator, List, Optional

import yaml
from transformers import AutoModelForCausalLM, HfArgumentParser

POSITIONS = ('model', 'reward_funcs', 'args', 'train_dataset', 'eval_dataset', 'processing_class')
FOLDERS = ('data_utils', 'experimental', 'extras', 'models', 'rewards', 'scripts', 'trainer')


class Made(BaseException):
    """A script has made its trainer; no ``except Exception`` of the script catches it."""

    def __init__(self, arguments: Dict[str, Any]) -> None:
        self.arguments = arguments


class GRPOTrainer:

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise Made({**dict(zip(POSITIONS, args)), **kwargs})


class Anything:
    """An object whose attributes and results are such objects, with what it was made of."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.given = args

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):
            raise AttributeError(name)
        return Anything(*self.given)

    def __call__(self, *args: Any, **kwargs: Any) -> 'Anything':
        return Anything(*self.given)


class _OfAnyKeys(type):
    """Of dataclasses that take any keys. Subclasses that are dataclasses too have their fields."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        known = {field.name for field in fields(cls)}
        made = super().__call__(*args, **{key: value for key, value in kwargs.items() if key in known})
        vars(made).update((key, value) for key, value in kwargs.items() if key not in known)
        return made


class _Options(metaclass=_OfAnyKeys):

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):
            raise AttributeError(name)
        return None


@dataclass
class GRPOConfig(_Options):
    output_dir: Optional[str] = None
    reward_weights: Optional[List[float]] = None
    max_completion_length: int = 256


@dataclass
class ScriptArguments(_Options):
    dataset_name: Optional[str] = None
    dataset_config: Optional[str] = None
    dataset_train_split: str = 'train'
    dataset_test_split: str = 'test'
    dataset_streaming: bool = False


@dataclass
class ModelConfig(_Options):
    model_name_or_path: Optional[str] = None
    model_revision: str = 'main'
    trust_remote_code: bool = False
    use_peft: bool = False


class TrlParser(HfArgumentParser):

    def __init__(self, dataclass_types: Any = None, **kwargs: Any) -> None:
        types = dataclass_types if isinstance(dataclass_types, (list, tuple)) else [dataclass_types or ()]
        super().__init__([each for each in types if each], **kwargs)

    def parse_args_and_config(self, args: Any = None, return_remaining_strings: bool = False, **_: Any) -> Any:
        """``--config FILE`` has the same arguments as YAML; those of the command line count."""
        args = [
            part for arg in (sys.argv[1:] if args is None else args)
            for part in (arg.split('=', 1) if arg.startswith('--') else [arg])
        ]
        if '--config' in args:
            at = args.index('--config')
            with open(args[at + 1], encoding='utf-8') as f:
                args = [*_arguments(yaml.safe_load(f)), *args[:at], *args[at + 2:]]
        return self.parse_args_into_dataclasses(args, return_remaining_strings, look_for_args_file=False)


def accuracy_reward(completions: Any, solution: Any, **kwargs: Any) -> None:
    """TRL's by name only: math_verify takes its place."""


_DEFINED = GRPOTrainer, GRPOConfig, ScriptArguments, ModelConfig, TrlParser, accuracy_reward
KNOWN = {each.__name__: each for each in _DEFINED}


class _Module(ModuleType):

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):
            raise AttributeError(name)
        if name in FOLDERS:
            return importlib.import_module(f'{self.__name__}.{name}')
        return KNOWN.get(name) or type(name, (Anything, ), {})


class _Finder:
    """Finds ``trl`` and every module in it."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        return ModuleSpec(name, _Finder, is_package=True) if name.split('.')[0] == 'trl' else None

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        pass


@contextmanager
def in_place_of_trl() -> Iterator[None]:
    """Import the stand-in as ``trl``. Models are not loaded, and parsers of arguments keep those that no class has."""
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split('.')[0] == 'trl'}
    parse = HfArgumentParser.parse_args_into_dataclasses

    def parse_all(self: Any, args: Any = None, return_remaining_strings: bool = False, **kwargs: Any) -> Any:
        *found, rest = parse(self, args, return_remaining_strings=True, **kwargs)
        for each in found:
            vars(each).update(_values(rest))
        return (*found, rest) if return_remaining_strings else tuple(found)

    sys.meta_path.insert(0, _Finder)
    HfArgumentParser.parse_args_into_dataclasses = parse_all
    AutoModelForCausalLM.from_pretrained = Anything
    try:
        yield
    finally:
        del AutoModelForCausalLM.from_pretrained
        HfArgumentParser.parse_args_into_dataclasses = parse
        sys.meta_path.remove(_Finder)
        for name in [name for name in sys.modules if name.split('.')[0] == 'trl']:
            del sys.modules[name]
        sys.modules.update(kept)


def _arguments(given: Dict[str, Any]) -> List[str]:
    """Values of YAML as arguments of a command."""
    found = []
    for key, value in given.items():
        if not isinstance(value, dict) and value is not None:
            found += [f'--{key}', *map(str, value if isinstance(value, list) else [value])]
    return found


def _values(arguments: List[str]) -> Dict[str, Any]:
    """Arguments that no class has, by their names: a text, or several."""
    found: Dict[str, List[str]] = {}
    for argument in arguments:
        if argument.startswith('--'):
            name, *own = argument[2:].split('=', 1)
            found[name.replace('-', '_')] = values = own
        elif found:
            values.append(argument)
    return {name: values[0] if len(values) == 1 else values or True for name, values in found.items()}
