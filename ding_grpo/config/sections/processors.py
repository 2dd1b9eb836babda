"""``policy.collect.processors``: what else changes the sampling distribution, beside temperature, top-k and top-p."""
from typing import Any, Dict, List

from ding_common import ConfigError, Rule, check_config, nearest

from ..key import POSITIVE, SHARE, Combination


def _is_bias(pair: Any) -> bool:
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        return False
    return (isinstance(pair[0], str) or Rule.integer(0).holds(pair[0])) and Rule.number().holds(pair[1])


_BIAS = Rule.list_of('pairs (token, number), a token being an id of at least 0 or a text', _is_bias)

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
        kind, field = entry['type'], 'allowed_tokens' if ':' in entry['type'] else entry['type']
        if ':' not in kind and kind not in PROCESSORS:
            known = [*PROCESSORS, 'module:function']
            raise ConfigError(f'{PROCESSORS_KEY}: type = {kind!r}: unknown processor; {nearest(kind, known)}')
        if field in found:
            raise ConfigError(f'{PROCESSORS_KEY}: type = {kind!r}: there are two of them. Remove one.')
        needed = dict([PROCESSORS[kind]]) if kind in PROCESSORS else {}
        arguments = {**dict.fromkeys(needed), **{key: value for key, value in entry.items() if key != 'type'}}
        check_config(arguments, dict.fromkeys(needed), needed, f'{PROCESSORS_KEY}: {kind}')
        found[field] = arguments[next(iter(needed))] if needed else kind
    return found


def check(policy: Combination) -> None:
    processor_arguments(policy['collect.processors'])
