import collections.abc
import difflib
import inspect
import math
import sys
import types
import typing
from importlib.util import find_spec
from typing import Any, Callable, Container, Dict, Iterable, NamedTuple, TypeVar, Union

from ding_common.errors import ConfigError

MOST_LISTED, NEAR = 50, 8  # words that a message lists; of more it lists the nearest


class Rule(NamedTuple):
    """A constraint on a value: a description for messages, and a predicate. It replaces the check of the type."""
    allowed: str
    holds: Callable[[Any], bool]

    @classmethod
    def number(cls, low: float = float('-inf'), high: float = float('inf'), open_low: bool = False) -> 'Rule':
        """A real number in [low, high], or in (low, high] with ``open_low``; never NaN and never a bool."""
        left = '(' if open_low or low == float('-inf') else '['
        right = ')' if high == float('inf') else ']'
        return cls(
            f'a number in {left}{low:g}, {high:g}{right}',
            lambda v: _is_number(v) and math.isfinite(v) and (low < v if open_low else low <= v) and v <= high
        )

    @classmethod
    def integer(cls, low: int, high: float = float('inf')) -> 'Rule':
        """An int of at least ``low``, and at most ``high``."""
        allowed = f'an integer of at least {low}' + ('' if math.isinf(high) else f' and at most {high}')
        return cls(allowed, lambda v: isinstance(v, int) and not isinstance(v, bool) and low <= v <= high)

    @classmethod
    def one_of(cls, *values: Any) -> 'Rule':
        return cls('one of ' + ', '.join(repr(v) for v in values), lambda v: any(v is w or v == w for w in values))

    @classmethod
    def registered(cls, registry: Container[str]) -> 'Rule':
        """A name that is in the registry at the time of the check."""
        return cls('a registered name', lambda v: isinstance(v, str) and v in registry)

    @classmethod
    def list_of(cls, allowed: str, holds: Callable[[Any], bool]) -> 'Rule':
        """A list for whose items a predicate holds."""
        return cls(f'a list of {allowed}', lambda v: isinstance(v, (list, tuple)) and all(map(holds, v)))

    @classmethod
    def modules(cls) -> 'Rule':
        """A list of names of modules that can be imported."""
        return cls.list_of('modules that can be imported', lambda name: isinstance(name, str) and _is_module(name))

    def or_none(self) -> 'Rule':
        """The same, or None."""
        return Rule(f'{self.allowed}, or None', lambda v: v is None or self.holds(v))

    def or_inf(self) -> 'Rule':
        """The same, or infinity."""
        return Rule(f'{self.allowed}, or inf', lambda v: v == float('inf') or self.holds(v))


MOST_FLOAT32 = (2 - 2 ** -23) * 2.0 ** 127


def is_reward(value: Any) -> bool:
    """Whether a value is a number that is finite in float32, the type of rewards."""
    try:
        return math.isfinite(value) and bool(abs(value) <= MOST_FLOAT32)
    except Exception:  # a tensor, an array, a text
        return False


# Upper bound for counts that cost time or memory, such as groups per collect. A larger value is a typing error.
MOST = 1_000_000


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # the part before a dot is not a package, or the name is empty
        return False


def _is_number(value: Any) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= sys.float_info.max  # math cannot take a larger one
    return isinstance(value, float)


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the closest match if there is one, then all allowed words, or of many
    those that are nearest."""
    known = sorted(map(str, known))
    match = difflib.get_close_matches(str(word), known, n=1, cutoff=0.6)
    hint = f"did you mean '{match[0]}'? " if match else ''
    if len(known) <= MOST_LISTED:
        return f"{hint}Allowed: {', '.join(known)}."
    near = difflib.get_close_matches(str(word), known, n=NEAR, cutoff=0.0)
    return f"{hint}The nearest of {len(known)} allowed words: {', '.join(near)}."


def check_config(cfg: Dict, default: Dict, rules: Dict[str, Rule], where: str) -> None:
    """
    Overview:
        Check a config against its defaults. DI-engine silently merges unknown keys.
    Arguments:
        - cfg (:obj:`Dict`): The config to check, merged with its defaults or not.
        - default (:obj:`Dict`): All allowed keys, each with a value of the right type. None allows any type, an \
            empty dict allows any keys in that section.
        - rules (:obj:`Dict[str, Rule]`): Rules by dotted path below ``where``, for values that the type alone does \
            not constrain.
        - where (:obj:`str`): Dotted path of ``cfg`` in the user's config, for the message.
    Raises:
        - ConfigError: On the first unknown key, wrong type or value out of range. The message names the key, the \
            value and the allowed values.
    """
    for key, value in cfg.items():  # unknown keys first: a misspelt key explains other errors
        if key not in default:
            raise ConfigError(f'{where}.{key} = {value!r:.200}: unknown key; {nearest(key, default)}')
    for key, value in cfg.items():
        full, expected = f'{where}.{key}', default[key]
        if key in rules:
            if not rules[key].holds(value):
                raise ConfigError(f'{full} = {value!r:.200}: must be {rules[key].allowed}.')
        elif isinstance(expected, dict):
            require_dict(value, full)
            if expected:
                below = {path.partition('.')[2]: rule for path, rule in rules.items() if path.startswith(f'{key}.')}
                check_config(value, expected, below, full)
        elif expected is not None and not _same_type(value, expected):
            needed = f'of type {type(expected).__name__}, like {expected!r}'
            needed = 'True or False' if isinstance(expected, bool) else needed
            raise ConfigError(f'{full} = {value!r:.200}: must be {needed}.')


def require_dict(value: Any, key: str) -> None:
    """Raise a ``ConfigError`` if a section of a config is not a dict. ``key`` is its dotted path."""
    if not isinstance(value, dict):
        raise ConfigError(f'{key} = {value!r:.200}: must be a dict.')


def check_arguments(args: Dict, function: Callable, where: str) -> None:
    """Check a section of a config against the signature of the function that receives its keys as arguments: names, and
    types where the annotation is simple, or as the default's. The function itself reports missing arguments."""
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name, value in args.items():
        if name not in parameters:
            if takes_any:
                continue
            raise ConfigError(f'{where}.{name} = {value!r:.200}: unknown key; {nearest(name, parameters)}')
        rule, default = _rule_of(parameters[name].annotation), parameters[name].default
        if not rule.holds(value) and not (default is not inspect.Parameter.empty and _same_type(value, default)):
            raise ConfigError(f'{where}.{name} = {value!r:.200}: must be {rule.allowed}.')


def is_async(function: Any) -> bool:
    """Whether a function, or the call of an object, is defined by ``async def``."""
    return any(map(inspect.iscoroutinefunction, (function, getattr(function, '__call__', None))))


def check_not_async(function: Any, where: str) -> None:
    """Raise a ``ConfigError`` if a user's function is defined by ``async def``, which nothing awaits."""
    if is_async(function):
        raise ConfigError(
            f'{where}: is defined by async def, and must be an ordinary function. Call asyncio.run in it; of a task, '
            'only score(problem, completion) may be async.'
        )


def _rule_of(annotation: Any) -> Rule:
    """The rule that an annotation implies for a value, as far as it can be checked."""
    kind = typing.get_origin(annotation) or annotation
    if kind in (Union, types.UnionType) or isinstance(kind, TypeVar):
        choices = typing.get_args(annotation) or [c for c in kind.__constraints__ if not inspect.isfunction(c)]
        rules = [_rule_of(choice) for choice in choices]
        return Rule(' or '.join(dict.fromkeys(r.allowed for r in rules)), lambda v: any(r.holds(v) for r in rules))
    if kind in _PLAIN:
        return _PLAIN[kind]
    if not isinstance(kind, type) or kind in (inspect.Parameter.empty, Any):  # Any is a class since Python 3.11
        return Rule('anything', lambda v: True)
    if issubclass(kind, collections.abc.Sequence):
        return Rule('a list', lambda v: isinstance(v, (list, tuple)))
    return Rule(f'of type {kind.__name__}', lambda v: isinstance(v, kind))


_PLAIN = {
    type(None): Rule('None', lambda v: v is None),
    bool: Rule('True or False', lambda v: isinstance(v, bool)),
    int: Rule('an integer', lambda v: isinstance(v, int) and not isinstance(v, bool)),
    float: Rule('a number', lambda v: _is_number(v) and not math.isnan(v)),
    str: Rule('text', lambda v: isinstance(v, str)),
    dict: Rule('a dict', lambda v: isinstance(v, dict)),
}


def _same_type(value: Any, expected: Any) -> bool:
    if isinstance(expected, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(expected, bool)
    if isinstance(expected, float):
        return _is_number(value) and not math.isnan(value)
    if isinstance(expected, (list, tuple)):
        return isinstance(value, (list, tuple))
    return isinstance(value, type(expected))
