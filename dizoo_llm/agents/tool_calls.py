"""Calls of functions in the text of a model, by the families of chat templates. The text is data."""
import json
import re
from typing import Any, Dict, NamedTuple, Optional, Tuple

_TAGGED = re.compile(r'<tool_call>\s*(.*?)\s*</tool_call>', re.DOTALL)
_PYTHON_TAG = '<|python_tag|>'


class Call(NamedTuple):
    """A call that a model wrote."""
    id: str
    name: str
    arguments: Dict[str, Any]


def calls_of(text: str, template: Optional[str], number: int) -> Tuple[str, Tuple[Call, ...]]:
    """
    Overview:
        The text without its calls, and the calls. Templates of Hermes and Qwen, and those without a form of their \
        own, have ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, several in a turn; Llama 3 writes \
        one object with ``parameters`` and nothing else. A call that is malformed stays text, with all others of \
        its turn.
    Arguments:
        - template (:obj:`Optional[str]`): The chat template.
        - number (:obj:`int`): Of the request in its episode, for the names of the calls.
    """
    if template is not None and _PYTHON_TAG in template and '<tool_call>' not in template:
        bodies, rest = [text.strip().removeprefix(_PYTHON_TAG)], ''
    else:
        bodies, rest = _TAGGED.findall(text), _TAGGED.sub('', text).strip()
    found = [_parsed(body) for body in bodies]
    if not found or None in found:
        return text, ()
    return rest, tuple(Call(f'call_{number}_{i}', *call) for i, call in enumerate(found))


def _parsed(body: str) -> Optional[Tuple[str, Dict[str, Any]]]:
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get('name'), str):
        return None
    arguments = call.get('arguments', call.get('parameters'))
    return (call['name'], arguments) if isinstance(arguments, dict) else None
