"""
An environment class of TRL, its reward functions, and fixed completions for it. Standard library alone, since the sides
live in different virtual environments.
"""
import copy
import json
from typing import Any, Callable, Dict, List, Optional

SEEN: Dict[int, Dict[str, Any]] = {}  # what the reward functions got, by the number of the case


class Shop:
    """A shop with a till, in which the model buys things."""

    def reset(self, prompt: List[Dict[str, str]], case: int, money: int, greets: bool, **columns: Any) -> Optional[str]:
        self._money, self._bought = money, []
        return f' You have {money}.' if greets else None

    def buy(self, thing: str, price: int, number: int = 1) -> str:
        """
        Buy a thing.

        Args:
            thing: Its name.
            price: Its price.
            number: How many.
        """
        if price * number > self._money:
            raise ValueError(f'{thing} is too expensive: you have {self._money}')
        self._money -= price * number
        self._bought += [thing] * number
        return f'bought {thing}, {self._money} left'

    async def look(self, shelf: str) -> str:
        """
        Look at a shelf.

        Args:
            shelf: Its name.
        """
        if shelf == 'top':
            raise KeyError(shelf)
        return f'{shelf}: nothing'

    def count(self) -> int:
        """
        Count the money.
        """
        return self._money

    def leave(self) -> None:
        """
        Leave the shop.
        """

    def _restock(self) -> str:
        """
        Not a tool.
        """
        return 'restocked'

    def get_reward(self) -> float:
        return float(len(self._bought))


def bought(environments: List[Shop], **columns: Any) -> List[Optional[float]]:
    """A reward from the state of the instances, None for those that bought nothing."""
    return [float(len(each._bought)) if each._bought else None for each in environments]


def said(prompts: List[Any], completions: List[Any], money: List[int], case: List[int], **columns: Any) -> List[float]:
    """A reward from messages and columns, which also records them."""
    found = []
    for prompt, completion, own, number in zip(prompts, completions, money, case):
        SEEN[number] = copy.deepcopy(dict(prompt=prompt, completion=completion))
        found.append(sum(len(message['content']) for message in completion) / own)
    return found


async def calls(completions: List[Any], **columns: Any) -> List[float]:
    """A reward by a coroutine: the number of calls."""
    return [float(sum(len(m.get('tool_calls', ())) for m in completion)) for completion in completions]


REWARDS = [bought, said, calls]


def in_json(name: str, **arguments: Any) -> str:
    """A call as Qwen 2.5 and Qwen 3 write it."""
    return f'<tool_call>\n{json.dumps(dict(name=name, arguments=arguments))}\n</tool_call>'


def in_tags(name: str, **arguments: Any) -> str:
    """A call as Qwen 3.5 writes it."""
    inner = ''.join(f'<parameter={key}>\n{value}\n</parameter>\n' for key, value in arguments.items())
    return f'<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>'


def cases(call: Callable[..., str]) -> Dict[str, List[str]]:
    """
    What the model says, turn by turn, in a form of calls. A case ends with its last turn, or where its loop ends it.
    """
    apple = call('buy', thing='apple', price=2)
    return {
        'no call': ['Hello.'],
        'nothing': [''],
        'a call': [apple, 'Done.'],
        'a call after text': [f'I buy one.\n{apple}', 'Done.'],
        'a call with white space around its text': [f'  I buy one. \n\n{apple}\n', ' Done. \n'],
        'several turns': [apple, apple, call('count'), 'Done.'],
        'several calls in a turn': [f"{apple}\n{call('count')}", 'Done.'],
        'coroutines after functions': [
            f"{call('look', shelf='left')}\n{apple}\n{call('look', shelf='right')}", 'Done.'
        ],
        'an error of a function': [call('buy', thing='car', price=900), 'Done.'],
        'an error of a coroutine': [call('look', shelf='top'), 'Done.'],
        'no such tool': [call('steal', thing='apple'), 'Done.'],
        'a private method': [call('_restock'), 'Done.'],
        'reset': [call('reset'), call('get_reward'), 'Done.'],
        'wrong arguments': [call('buy', thing='apple', cost=2),
                            call('buy'), call('look', x=1), 'Done.'],
        'wrong arguments of a coroutine, first': [
            f"{call('look', x=1)}\n{call('look', shelf='left')}\n{apple}", 'Done.'
        ],
        'an argument of another type': [call('buy', thing=3, price='2'),
                                        call('buy', thing='x', price=1.0), 'Done.'],
        'None is a result': [call('leave'), 'Done.'],
        'more calls than are executed': [apple] * 6,
        'arguments that are no object': ['<tool_call>\n{"name": "buy", "arguments": [1]}\n</tool_call>', 'Done.'],
        'arguments in a text': ['<tool_call>\n{"name": "count", "arguments": "{}"}\n</tool_call>', 'Done.'],
        'no arguments': ['<tool_call>\n{"name": "count"}\n</tool_call>', 'Done.'],
        'parameters': ['<tool_call>\n{"name": "count", "parameters": {}}\n</tool_call>', 'Done.'],
        'no name': ['<tool_call>\n{"arguments": {}}\n</tool_call>', 'Done.'],
        'not JSON': ['<tool_call>\nbuy apple\n</tool_call>', 'Done.'],
        'a call and one that is not JSON': [f'{apple}\n<tool_call>\nbuy\n</tool_call>', 'Done.'],
        'a call without its end': [apple[:-len('</tool_call>')], 'Done.'],
        'text after a call': [f'{apple}\nThat was it.', 'Done.'],
        'text between calls': [f'{apple}\nand\n{apple}', 'Done.'],
        'thoughts': ['<think>\nHm.\n</think>\n\nHello.'],
        'thoughts before a call': [f'<think>\nAn apple?\n</think>\n\n{apple}', 'Done.'],
        'thoughts without their end': ['<think>\nHm.'],
        'a call in thoughts without their end': [f'<think>\nHm.\n{apple}'],
        'thoughts that began in the prompt': ['Hm.\n</think>\n\nHello.'],
        'no thoughts': ['<think>\n\n</think>\n\nHello.'],
        'a call in thoughts': [f'<think>\n{apple}\n</think>\n\nNo.', 'Done.'],
    }


# Cases in which the sides differ, and why.
KNOWN = {
    'parameters': 'TRL leaves this key in the message besides arguments; the rewards are equal',
    'thoughts without their end': 'TRL leaves the end-of-sequence token in reasoning_content; the rewards are equal',
    'a call in thoughts without their end': 'the same',
    'thoughts that began in the prompt': (
        'the template does not begin thoughts, so TRL takes them for content; here what ends in `</think>` is a thought'
    ),
}
MOST = 4  # answers with calls that are executed


def rows(number: int) -> List[Dict[str, Any]]:
    """A row for each of so many cases; ``reset`` returns text in every other one."""
    prompt = 'Case {}: buy something.'
    return [
        dict(prompt=[dict(role='user', content=prompt.format(i))], case=i, money=10 + i, greets=i % 2 == 0)
        for i in range(number)
    ]
