import difflib
import math
from typing import Any, Callable, Dict, Iterable, NamedTuple

from .errors import ConfigError


class Rule(NamedTuple):
    """
    Overview:
        What a value must be, in words and as a predicate. A rule replaces the check against the default's type.
    """
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
    def integer(cls, low: int) -> 'Rule':
        """An int of at least ``low``."""
        return cls(
            f'an integer of at least {low}', lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= low
        )

    @classmethod
    def one_of(cls, *values: Any) -> 'Rule':
        """One of the given values."""
        return cls('one of ' + ', '.join(repr(v) for v in values), lambda v: any(v is w or v == w for w in values))

    def or_none(self) -> 'Rule':
        """The same, or None."""
        return Rule(f'{self.allowed}, or None', lambda v: v is None or self.holds(v))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def nearest(word: str, known: Iterable[str]) -> str:
    """
    Overview:
        The end of a message about an unknown word: the nearest known one if there is one, and all that are known.
    """
    known = sorted(map(str, known))
    match = difflib.get_close_matches(str(word), known, n=1, cutoff=0.6)
    hint = f"did you mean '{match[0]}'? " if match else ''
    return f"{hint}Allowed: {', '.join(known)}."


def check_config(cfg: Dict, default: Dict, rules: Dict[str, Rule], where: str) -> None:
    """
    Overview:
        Compare a config with the defaults that declare it. DI-engine merges unknown keys without a word.
    Arguments:
        - cfg (:obj:`Dict`): The config to be checked, merged with its defaults or not.
        - default (:obj:`Dict`): Every key that there is, with a value of the right type. None stands for any type,
            an empty dict for a section of free keys.
        - rules (:obj:`Dict[str, Rule]`): By dotted path below ``where``, what the type alone does not say.
        - where (:obj:`str`): Dotted path of ``cfg`` in the user's config, for the message.
    Raises:
        - ConfigError: On the first unknown key, wrong type or value out of range; the message names the key, the
            value and what is allowed.
    """
    _check(cfg, default, rules, where, '')


def _check(cfg: Dict, default: Dict, rules: Dict[str, Rule], where: str, below: str) -> None:
    for key, value in cfg.items():
        path = f'{below}.{key}' if below else str(key)
        full = f'{where}.{path}'
        if key not in default:
            raise ConfigError(f'{full} = {value!r}: unknown key; {nearest(key, default)}')
        expected = default[key]
        if path in rules:
            if not rules[path].holds(value):
                raise ConfigError(f'{full} = {value!r}: must be {rules[path].allowed}.')
        elif isinstance(expected, dict):
            if not isinstance(value, dict):
                raise ConfigError(f'{full} = {value!r}: must be a dict.')
            if expected:
                _check(value, expected, rules, where, path)
        elif expected is not None and not _same_type(value, expected):
            raise ConfigError(f'{full} = {value!r}: must be of type {type(expected).__name__}, as {expected!r} is.')


def _same_type(value: Any, expected: Any) -> bool:
    if isinstance(expected, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(expected, bool)
    if isinstance(expected, float):
        return _is_number(value)
    if isinstance(expected, (list, tuple)):
        return isinstance(value, (list, tuple))
    return isinstance(value, type(expected))
