"""Calls of functions in the text of a model, by the families of chat templates. The text is data."""
import json
import math
import re
from decimal import Decimal
from functools import partial
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

# White space around a value is stripped afterwards: in a pattern, a run of it without an end takes its third power.
_TAGGED = re.compile(r'<tool_call>(.*?)</tool_call>', re.DOTALL)
# The end of the last one may be missing if its function has ended, as TRL and vLLM read it.
_TAGGED_FUNCTION = re.compile(r'<tool_call>(.*?)(?:</tool_call>|(?<=</function>)\s*\Z)', re.DOTALL)
_PYTHON_TAG = '<|python_tag|>'
_FUNCTION = re.compile(r'<function=([^\n>]+)>(.*?)(?:</function>)?', re.DOTALL)
_PARAMETER = re.compile(r'<parameter=([^\n>]+)>(.*?)</parameter>', re.DOTALL)
_VALUES: Dict[str, Dict[str, Any]] = dict(
    boolean={
        'true': True,
        '1': True,
        'false': False,
        '0': False
    }, null=dict(null=None, none=None)
)
_CONTAINERS = dict(object=dict, array=list)


class Call(NamedTuple):
    """A call that a model wrote."""
    id: str
    name: str
    arguments: Any  # an object, unless others are asked for


def calls_of(
        text: str,
        template: Optional[str],
        number: int,
        tools: Sequence[Dict[str, Any]] = (),
        any_arguments: bool = False
) -> Tuple[str, Tuple[Call, ...]]:
    """
    The text without its calls, and the calls. Templates of Hermes and Qwen, and those without a form of their own, have
    ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, several in a turn; Qwen 3.5 has ``<function=name>``
    with ``<parameter=key>`` in these tags; Llama 3 writes one object with ``parameters`` and nothing else. A call that
    is malformed stays text, with all others of its turn, in the form of Qwen 3.5 alone. Calls in thoughts are text.
    ``template`` is the chat template, ``number`` that of the request in its episode, for the names of the calls. Texts
    are read as the types that the schemas of ``tools`` give. With ``any_arguments``, JSON arguments that are not an
    object make a call too.
    """
    thoughts, said, parse = '', text, partial(_of_json, any_arguments=any_arguments)
    if template is not None and _PYTHON_TAG in template and '<tool_call>' not in template:
        bodies, rest = [text.strip().removeprefix(_PYTHON_TAG)], ''
    else:
        thoughts, said = _after_thoughts(text)
        bodies, rest = _TAGGED.findall(said), _TAGGED.sub('', said)
        if template is not None and '<function=' in template:
            parse = _of_tags
            bodies = [body for body in _TAGGED_FUNCTION.findall(said) if _of_tags(body.strip()) is not None]
            rest = _TAGGED_FUNCTION.sub(lambda call: call[0] if _of_tags(call[1].strip()) is None else '', said)
    found = [parse(body.strip()) for body in bodies]
    if not found or None in found:
        return text, ()
    types = {tool['function']['name']: tool['function'].get('parameters') for tool in tools}
    calls = [(name, _typed(arguments, types.get(name))) for name, arguments in found]
    return (thoughts + rest).strip(), tuple(Call(f'call_{number}_{i}', *call) for i, call in enumerate(calls))


def _after_thoughts(text: str) -> Tuple[str, str]:
    """A text up to the end of its thoughts, which may have begun in the prompt, and what follows."""
    thoughts, end, said = text.rpartition('</think>')
    said, begin, more = said.partition('<think>')
    return (thoughts + end + said + begin + more, '') if begin else (thoughts + end, said)


def _of_json(body: str, any_arguments: bool) -> Optional[Tuple[str, Any]]:
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get('name'), str):
        return None
    arguments = call.get('arguments', call.get('parameters'))
    arguments = {} if arguments is None else arguments
    return (call['name'], arguments) if any_arguments or isinstance(arguments, dict) else None


def _of_tags(body: str) -> Optional[Tuple[str, Dict[str, Any]]]:
    found = _FUNCTION.fullmatch(body)
    if found is None or _PARAMETER.sub('', found[2]).strip():
        return None
    arguments = {key: value.strip() for key, value in _PARAMETER.findall(found[2])}
    return None if any('<parameter=' in value for value in arguments.values()) else (found[1], arguments)


def _typed(arguments: Any, parameters: Any) -> Any:
    """Arguments with texts as the types that the schema of the parameters gives, where they can be read so."""
    known = parameters.get('properties') if isinstance(parameters, dict) else None
    if not isinstance(known, dict) or not isinstance(arguments, dict):
        return arguments
    return {
        key: _as_typed(value, _types(known.get(key))) if isinstance(value, str) else value
        for key, value in arguments.items()
    }


def _as_typed(text: str, types: List[str]) -> Any:
    """A text as the first of the types that it can be read as. One that may be a string must be written as such a value
    is: '01234' and '1e3' stay strings."""
    for kind in types:
        try:
            value = _read(text, kind)
        except (ValueError, RecursionError):
            continue
        if 'string' not in types or text in (json.dumps(value), str(value)) or kind in _CONTAINERS and text[0] in '{[':
            return value
    return text


def _read(text: str, kind: str) -> Any:
    """A text as a type of a schema. Raises a ``ValueError`` if it is not such."""
    if kind in ('integer', 'number'):
        number = float(text)
        if not math.isfinite(number) or kind == 'integer' and not number.is_integer():
            raise ValueError(text)
        return int(Decimal(text.strip())) if kind == 'integer' or number.is_integer() and '.' not in text else number
    if kind in _VALUES and text.strip().lower() in _VALUES[kind]:
        return _VALUES[kind][text.strip().lower()]
    if kind in _CONTAINERS:
        value = json.loads(text)
        if isinstance(value, _CONTAINERS[kind]):
            return value
    raise ValueError(text)


def _types(schema: Any) -> List[str]:
    if not isinstance(schema, dict):
        return []
    own = schema.get('type', [])
    found = [own] if isinstance(own, str) else list(own) if isinstance(own, list) else []
    for choices in (schema.get('anyOf'), schema.get('oneOf')):
        for choice in choices if isinstance(choices, list) else ():
            found += _types(choice)
    return [*found, *['null'] * bool(schema.get('nullable'))]
