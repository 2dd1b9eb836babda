"""How a key of a config is declared, and how combinations of keys are refused."""
from typing import Any, Dict, Iterable, NamedTuple, Tuple

from ding_common import MOST, ConfigError, Rule

POSITIVE = Rule.number(0, open_low=True)
SHARE = Rule.number(0, 1, open_low=True)
COUNT = Rule.integer(1)
SIZE = Rule.integer(1, MOST)


class Key(NamedTuple):
    """A default and the allowed values. A key without a rule accepts any value of its default's type."""
    default: Any
    rule: Rule


def optional(rule: Rule) -> Key:
    """A key that is None by default."""
    return Key(None, rule.or_none())


def split(keys: Dict, below: str = '') -> Tuple[Dict, Dict[str, Rule]]:
    """The defaults of a section, and its rules by dotted path."""
    defaults, rules = {}, {}
    for name, key in keys.items():
        path = f'{below}{name}'
        if isinstance(key, Key):
            defaults[name], rules[path] = key
        elif isinstance(key, dict):
            defaults[name], of_section = split(key, f'{path}.')
            rules.update(of_section)
        else:
            defaults[name] = key
    return defaults, rules


class Combination:
    """The section ``policy`` of a config beside its defaults, with what refuses combinations of its keys. Keys are
    given by their dotted paths below ``policy``."""

    def __init__(self, cfg: Dict, default: Dict) -> None:
        self.cfg, self._default = cfg, default

    def __getitem__(self, path: str) -> Any:
        return value_at(self.cfg, path)

    def default(self, path: str) -> Any:
        return value_at(self._default, path)

    def only_with(self, paths: Iterable[str], holds: bool, needs: str) -> None:
        """Refuse keys that differ from their defaults, unless what they need holds."""
        for path in paths:
            if not holds and self[path] != self.default(path):
                raise self.refusal(path, f'only available with {needs}.')

    def must_be(self, path: str, value: Any, reason: str) -> None:
        """Refuse any other value of a key; ``reason`` follows "must be <value>"."""
        if self[path] != value:
            raise self.refusal(path, f'must be {value!r} {reason}.')

    def must_be_default(self, paths: Iterable[str], reason: str) -> None:
        for path in paths:
            self.must_be(path, self.default(path), reason)

    def refusal(self, path: str, message: str) -> ConfigError:
        value = self[path]
        return ConfigError(f'policy.{path} = {dict(value) if isinstance(value, dict) else value!r}: {message}')


def value_at(section: Dict, path: str) -> Any:
    """What a section has at a dotted path."""
    for key in path.split('.'):
        section = section[key]
    return section
