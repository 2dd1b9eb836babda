"""Bodies of OpenAI's requests and answers. Forms: https://platform.openai.com/docs/api-reference"""
import json
import time
from contextlib import suppress
from itertools import accumulate
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ding_common import nearest

from .tool_calls import Call

Message = Dict[str, Any]
MOST_CHOICES = 64
# Values of a request that change nothing; with another one it would be sampled otherwise than it is learned.
NEUTRAL = dict(
    top_p=(1, ),
    presence_penalty=(0, ),
    frequency_penalty=(0, ),
    logit_bias=({}, ),
    seed=(),
    tool_choice=('auto', ),
    response_format=(dict(type='text'), ),
    echo=(False, ),
    best_of=(1, ),
    suffix=(),
)
READ = (
    'model', 'messages', 'prompt', 'tools', 'n', 'stop', 'max_tokens', 'max_completion_tokens', 'temperature',
    'logprobs', 'top_logprobs'
)
UNREAD = ('stream', 'stream_options', 'user', 'metadata', 'store', 'parallel_tool_calls')
KEPT = ('role', 'content', 'name', 'tool_calls', 'tool_call_id')  # of a message


class Refused(Exception):
    """Why a request is not answered, as the client reads it."""

    def __init__(self, message: str, param: Optional[str] = None, status: int = 400, code: Optional[str] = None):
        super().__init__(message)
        self.param, self.status, self.code = param, status, code

    def body(self) -> Dict[str, Any]:
        kind = 'invalid_request_error' if self.status < 429 else 'rate_limit_error'
        return dict(error=dict(message=str(self), type=kind, param=self.param, code=self.code))


class Asked(NamedTuple):
    """What a request asks for."""
    messages: Optional[List[Message]]  # of a chat
    prompt: Any  # of a completion: text, or token ids
    tools: List[Dict[str, Any]]
    choices: int
    stop: List[str]
    most: Optional[int]  # tokens
    streams: bool
    logprobs: bool
    any_arguments: bool = False  # whether calls may have arguments that are not an object

    @classmethod
    def of(cls, body: Any, is_chat: bool, temperature: float) -> 'Asked':
        """From the body of a request. Raises ``Refused`` for what it may not ask."""
        if not isinstance(body, dict):
            raise Refused('the body must be a JSON object')
        given = {key: value for key, value in body.items() if value is not None}
        for key, value in given.items():
            if key in NEUTRAL and value not in NEUTRAL[key] and value != []:
                told = ' or '.join(map(repr, NEUTRAL[key])) or 'left out'
                raise Refused(f'{key} = {value!r:.80}: must be {told}; the run decides how is sampled', key)
            if key not in (*NEUTRAL, *READ, *UNREAD):
                raise Refused(f'{key}: unknown; {nearest(key, (*READ, *UNREAD))}', key)
        if given.get('temperature', temperature) != temperature:
            raise Refused(
                f"temperature = {given['temperature']!r:.80}: must be {temperature:g}, that of this run "
                '(policy.collect.temperature, and env.task.temperature for agents), or left out', 'temperature'
            )
        most = given.get('max_completion_tokens', given.get('max_tokens'))
        _check('max_tokens', most, most is None or _is_count(most), 'a positive integer')
        choices, stop = given.get('n', 1), given.get('stop', [])
        _check('n', choices, _is_count(choices) and choices <= MOST_CHOICES, f'an integer from 1 to {MOST_CHOICES}')
        stop = [stop] if isinstance(stop, str) else stop
        fits = isinstance(stop, list) and all(isinstance(text, str) and text for text in stop)
        _check('stop', stop, fits, 'text, or a list of texts')
        messages, prompt, tools = given.get('messages'), given.get('prompt'), given.get('tools', [])
        if is_chat:
            messages = messages_of(messages)
            named = isinstance(tools, list) and all(map(_names_a_function, tools))
            _check('tools', tools, named, "a list of functions, {'type': 'function', 'function': {'name': ...}}")
        else:
            _check('prompt', prompt, isinstance(prompt, str) or _are_ids(prompt), 'text, or a list of token ids')
        streams, logprobs = bool(given.get('stream', False)), _asks_logprobs(given, is_chat)
        return cls(messages, prompt, tools if is_chat else [], choices, stop, most, streams, logprobs)


def messages_of(messages: Any) -> List[Message]:
    """Messages in the form in which they are compared: no empty fields, contents as text, arguments as objects."""
    _check('messages', messages, isinstance(messages, list) and len(messages) > 0, 'a list of messages')
    found = []
    for i, message in enumerate(messages):
        where = f'messages[{i}]'
        _check(where, message, isinstance(message, dict) and isinstance(message.get('role'), str), 'a message')
        for key, value in message.items():
            if key not in KEPT and value:
                raise Refused(f'{where}.{key} = {value!r:.80}: not available; only {", ".join(KEPT)}', 'messages')
        found.append({key: message[key] for key in KEPT if message.get(key)})
        found[-1]['content'] = _text(message.get('content'), where)
        calls = message.get('tool_calls')
        if calls:
            _check(f'{where}.tool_calls', calls, isinstance(calls, list), 'a list of calls of functions')
            found[-1]['tool_calls'] = [_call(call, where) for call in calls]
    return found


def _text(content: Any, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ''
    for part in content if isinstance(content, list) else [content]:
        if not isinstance(part, dict) or part.get('type') != 'text' or not isinstance(part.get('text'), str):
            raise Refused(f'{where}.content: {part!r:.80} is not text, and this model reads text only', 'messages')
    return ''.join(part['text'] for part in content)


def _call(call: Any, where: str) -> Dict[str, Any]:
    _check(f'{where}.tool_calls', call, _names_a_function(call), 'calls of functions')
    name, arguments = call['function']['name'], call['function'].get('arguments', {})
    if isinstance(arguments, str):
        with suppress(ValueError):  # the model wrote it
            read = json.loads(arguments)
            arguments = read if isinstance(read, dict) else arguments
    return dict(id=str(call.get('id', '')), type='function', function=dict(name=name, arguments=arguments))


def _check(key: str, value: Any, holds: bool, allowed: str) -> None:
    if not holds:
        raise Refused(f'{key} = {value!r:.80}: must be {allowed}', key.partition('[')[0])


def _asks_logprobs(given: Dict[str, Any], is_chat: bool) -> bool:
    """Whether a request asks for log-probabilities. Completions of the older form ask for a number of alternatives."""
    value, others = given.get('logprobs', False), given.get('top_logprobs', 0)
    only = 'only that of the sampled token is known'
    _check('top_logprobs', others, others == 0, f'0, since {only}')
    if is_chat or value is False:
        _check('logprobs', value, isinstance(value, bool), 'true or false')
        return value
    _check('logprobs', value, value == 0, f'0, the number of alternatives, since {only}')
    return True


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _names_a_function(value: Any) -> bool:
    """As a tool and a call do."""
    function = value.get('function') if isinstance(value, dict) else None
    return isinstance(function, dict) and isinstance(function.get('name'), str)


def _are_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and len(prompt) > 0 and all(type(token) is int and token >= 0 for token in prompt)


class Scored(NamedTuple):
    """A sampled token: what it adds to the text, and its log-probability."""
    token: str
    logprob: float


class Choice(NamedTuple):
    """One completion of a request."""
    text: str
    cut: bool
    tokens: int
    content: str = ''  # of a chat's message, what is not a call
    calls: Tuple[Call, ...] = ()
    scored: Optional[List[Scored]] = None  # tokens; None if the request does not ask for their log-probabilities

    @property
    def reason(self) -> str:
        return 'length' if self.cut else 'tool_calls' if self.calls else 'stop'

    def message(self) -> Message:
        message: Message = dict(role='assistant', content=self.content or None)
        if self.calls:
            message['tool_calls'] = [
                dict(id=call.id, type='function', function=dict(name=call.name, arguments=json.dumps(call.arguments)))
                for call in self.calls
            ]
        return message


def answer(asked: Asked, number: int, prompt_tokens: int, choices: List[Choice]) -> Dict[str, Any]:
    """The body of an answer. ``number`` is that of the request in its episode."""
    is_chat, written = asked.messages is not None, sum(choice.tokens for choice in choices)
    found = []
    for i, choice in enumerate(choices):
        own = dict(message=choice.message()) if is_chat else dict(text=choice.text)
        logprobs = None if choice.scored is None else _logprobs(choice, is_chat)
        found.append(dict(own, index=i, finish_reason=choice.reason, logprobs=logprobs))
    return dict(
        id=f"{'chatcmpl' if is_chat else 'cmpl'}-{number}",
        object='chat.completion' if is_chat else 'text_completion',
        created=int(time.time()),
        model='policy',
        choices=found,
        usage=dict(prompt_tokens=prompt_tokens, completion_tokens=written, total_tokens=prompt_tokens + written),
    )


def _logprobs(choice: Choice, is_chat: bool) -> Dict[str, Any]:
    """All tokens that were sampled: also those of a stop string, of calls, and the end of the sequence."""
    if is_chat:
        known = [(each, list(each.token.encode(errors='replace'))) for each in choice.scored]
        return dict(content=[dict(each._asdict(), bytes=found, top_logprobs=[]) for each, found in known], refusal=None)
    texts = [each.token for each in choice.scored]
    offsets = [0, *accumulate(map(len, texts))][:-1]
    return dict(
        tokens=texts, token_logprobs=[each.logprob for each in choice.scored], text_offset=offsets, top_logprobs=None
    )


def chunks(body: Dict[str, Any]) -> List[Dict[str, Any]]:
    """An answer as a stream of one chunk for each choice."""
    found = []
    for choice in body['choices']:
        part = dict(choice)
        if 'message' in part:
            message = part.pop('message')
            calls = [dict(call, index=i) for i, call in enumerate(message.get('tool_calls', []))]
            part['delta'] = dict(message, tool_calls=calls) if calls else message
        kind = body['object'] + '.chunk' if 'delta' in part else body['object']
        found.append(dict({key: value for key, value in body.items() if key != 'usage'}, object=kind, choices=[part]))
    return found
