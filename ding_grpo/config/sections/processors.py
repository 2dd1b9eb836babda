"""``policy.collect.processors``: what else changes the sampling distribution, beside temperature, top-k and top-p."""
from typing import Any, Dict, List

from ding_common import ConfigError, Rule, nearest

from ..key import POSITIVE, SHARE, Combination

_BIAS = Rule(
    'a list of pairs (token, number), a token being an id of at least 0 or a text',
    lambda v: isinstance(v, (list, tuple)) and all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in v) and
    all((isinstance(token, str) or Rule.integer(0).holds(token)) and Rule.number().holds(bias) for token, bias in v)
)

# Each has one argument: its name, and the allowed values.
PROCESSORS = dict(
    min_p=('p', SHARE),
    typical_p=('p', SHARE),
    repetition_penalty=('penalty', POSITIVE),
    logit_bias=('bias', _BIAS),
)

PROCESSORS_KEY = 'policy.collect.processors'


def processor_arguments(processors: List[Dict[str, Any]]) -> Dict[str, Any]:
    """The argument of each processor, by fields of ``Sampling``; the grammar is ``allowed_tokens``. Raises a
    ``ConfigError`` if an entry is not a processor, or if there are two of a type."""
    found: Dict[str, Any] = {}
    for entry in processors:
        kind, arguments = entry['type'], {key: value for key, value in entry.items() if key != 'type'}
        if ':' in kind:
            field, needed = 'allowed_tokens', {}
        elif kind in PROCESSORS:
            field, needed = kind, dict([PROCESSORS[kind]])
        else:
            known = [*PROCESSORS, 'module:function']
            raise ConfigError(f'{PROCESSORS_KEY}: type = {kind!r}: unknown processor; {nearest(kind, known)}')
        if field in found:
            raise ConfigError(f'{PROCESSORS_KEY}: type = {kind!r}: there are two of them. Remove one.')
        for name in arguments:
            if name not in needed:
                raise ConfigError(
                    f'{PROCESSORS_KEY}: {kind}.{name} = {arguments[name]!r}: unknown key; {nearest(name, needed)}'
                )
        for name, rule in needed.items():
            if not rule.holds(arguments.get(name)):
                raise ConfigError(f'{PROCESSORS_KEY}: {kind}.{name} = {arguments.get(name)!r}: must be {rule.allowed}.')
        found[field] = kind if field == 'allowed_tokens' else arguments[next(iter(needed))]
    return found


def check(policy: Combination) -> None:
    processor_arguments(policy['collect.processors'])
