"""Functions of a script or a notebook as a file of their own, which a config can name."""
import ast
import inspect
import textwrap
from types import ModuleType
from typing import Any, Callable, Dict, List

SCRIPT = '__main__'


def of_script(function: Any) -> bool:
    """Whether a function is defined in the script that runs, or in a notebook."""
    return inspect.isfunction(function) and function.__module__ == SCRIPT


def source_of(functions: List[Callable]) -> str:
    """
    A file with some functions of the script, and what they use of it: imports, constants, further functions. Raises a
    ``ValueError`` if they use something else, or have no source.
    """
    imports: Dict[str, str] = {}
    constants: Dict[str, str] = {}
    defined: Dict[str, str] = {}
    waiting = list(functions)
    while waiting:
        function = waiting.pop()
        if function.__name__ in defined:
            continue
        defined[function.__name__] = _text(function)
        for name, value in inspect.getclosurevars(function).globals.items():
            if isinstance(value, ModuleType):
                imports[name] = f'import {value.__name__} as {name}' if value.__name__ != name else f'import {name}'
            elif of_script(value):
                waiting.append(value)
            elif getattr(value, '__module__', SCRIPT) != SCRIPT and hasattr(value, '__qualname__'):
                own = value.__qualname__
                imports[name] = f'from {value.__module__} import {own}' + (f' as {name}' if own != name else '')
            else:
                constants[name] = f'{name} = {_literal(name, value)}'
    parts = ['\n'.join(sorted(imports.values())), '\n'.join(constants.values()), *reversed(defined.values())]
    return '\n\n\n'.join(filter(None, parts)) + '\n'


def _text(function: Callable) -> str:
    if function.__closure__ or not function.__name__.isidentifier() or '<locals>' in function.__qualname__:
        raise ValueError(f'{function.__qualname__} is not defined at the top of the script')
    try:
        return textwrap.dedent(inspect.getsource(function)).rstrip()
    except OSError as error:
        raise ValueError(f'{function.__name__} has no source ({error})') from error


def _literal(name: str, value: Any) -> str:
    try:
        assert ast.literal_eval(repr(value)) == value
    except Exception as error:
        raise ValueError(f'{name} is no constant that can be written') from error
    return repr(value)
