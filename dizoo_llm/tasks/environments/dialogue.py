"""The dialogue of a model with the tools of an environment, by the rules of TRL's ``GRPOTrainer``."""
import asyncio
import json
from typing import Any, Callable, Dict, List, Optional, Tuple

from ding_common import is_async

from .instances import Instance, Outcome, tools_of

Message = Dict[str, Any]
Call = Tuple[str, Any]  # name and arguments, which the model may write as something else than an object


def with_observation(prompt: Any, observation: Any) -> List[Message]:
    """The messages of a prompt, the last one with what ``reset`` returned at its end."""
    messages = [dict(role='user', content=prompt)] if isinstance(prompt, str) else prompt
    if observation is None:
        return messages
    if not isinstance(observation, (str, list)):
        raise TypeError(f'reset returned {observation!r:.200}, must return text, a list of text parts, or None')
    content = messages[-1]['content']
    if isinstance(observation, list):
        content = [dict(type='text', text=content)]
    return [*messages[:-1], dict(messages[-1], content=content + observation)]


async def dialogue(
        client: Any, instance: Instance, prompt: List[Message], schemas: List[Dict[str, Any]], most: Optional[int]
) -> List[Message]:
    """
    The messages that follow a prompt, in TRL's form, until an answer has no calls or ``most`` answers with calls were
    executed. Results that leave no room for another answer are dropped.
    """
    messages, said, results, executed = list(prompt), [], [], 0
    while True:
        answer = await client.chat(messages, schemas)
        if answer is None:
            return said[:-len(results)]
        functions = [call['function'] for call in answer.get('tool_calls', ())]
        calls = [(function['name'], json.loads(function['arguments'])) for function in functions]
        said.append(_written(answer['content'] or '', calls))
        if not calls or executed == most:
            return said
        results = await _results(instance, calls)
        messages += [answer, *results]
        said += results
        executed += 1


def _written(content: str, calls: List[Call]) -> Message:
    """An answer as TRL's reward functions read it, with its thoughts apart, which may have begun in the prompt."""
    thoughts, _, content = content.rpartition('</think>')
    if content.lstrip().startswith('<think>'):
        thoughts, content = content, ''
    thoughts = thoughts.strip().removeprefix('<think>').strip()
    malformed = '<tool_call>' in content and not calls  # TRL leaves such a text as it is
    message: Message = dict(role='assistant', content=content if malformed else content.strip())
    if thoughts:
        message['reasoning_content'] = thoughts
    if calls:
        message['tool_calls'] = [
            dict(type='function', function=dict(name=name, arguments=arguments)) for name, arguments in calls
        ]
    return message


async def _results(instance: Instance, calls: List[Call]) -> List[Message]:
    """The messages that answer calls: ordinary functions one after the other, then coroutines, which run at once."""
    tools, found, waiting = tools_of(instance.environment), [], []
    for name, arguments in calls:
        try:
            if name not in tools:
                raise ValueError(f'Tool {name} not found.')
            if is_async(tools[name]):
                tools[name](**arguments).close()  # raises for wrong arguments, and has not begun
                waiting.append((name, arguments))
            else:
                found.append((name, await instance.call(_spread, tool=tools[name], arguments=arguments)))
        except Exception as error:  # for the model to read
            found.append((name, (None, error)))
    outcomes = await asyncio.gather(*(instance.call(tools[name], **arguments) for name, arguments in waiting))
    found += [(name, outcome) for (name, _), outcome in zip(waiting, outcomes)]
    return [dict(role='tool', name=name, content=_content(outcome)) for name, outcome in found]


def _spread(tool: Callable, arguments: Any) -> Any:
    """The result of a tool. Arguments that are not an object raise an error that names it."""
    return tool(**arguments)


def _content(outcome: Outcome) -> Any:
    value, error = outcome
    if error is not None and not isinstance(error, Exception):
        raise error  # such as SystemExit, which ends the row
    if error is not None:
        value = dict(error=str(error))
    return value if isinstance(value, list) else str(value)
