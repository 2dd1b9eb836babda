"""
A game of several turns for both sides: guess a number by calling a function, three times. Rules, texts and reward are
here, so that both sides read and score the same; standard library alone, since the sides live in different virtual
environments.
"""
import json
import re
from typing import Any, Optional

HIGHEST = 7
TURNS = 3
QUESTION = 'Guess my number.'


def call(number: int) -> str:
    """
    Overview:
        The text of a turn, as the chat template of Qwen 2.5 writes a call.
    """
    return f'<tool_call>\n{{"name": "guess", "arguments": {{"number": {number}}}}}\n</tool_call>'


def called(text: str) -> Optional[int]:
    """
    Overview:
        The number that a turn guesses; None if it is no such call.
    """
    found = re.search(r'<tool_call>\s*(.+?)\s*</tool_call>', text, re.DOTALL)
    try:
        return _integer(json.loads(found.group(1))['arguments']['number'])
    except (AttributeError, ValueError, KeyError, TypeError):
        return None


def answer(number: Any, secret: int) -> str:
    """
    Overview:
        What a guess is answered. Every game has all its turns, so that both sides sample equally many tokens.
    """
    number = _integer(number)
    return 'right' if number == secret else 'higher' if number is not None and number < secret else 'lower'


def response(text: str) -> str:
    """
    Overview:
        The user's message in which the template puts the answer of a function.
    """
    return f'<tool_response>\n{text}\n</tool_response>'


def _integer(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
