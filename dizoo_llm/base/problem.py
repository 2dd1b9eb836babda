"""A problem, and what its prompt may be."""
from collections import namedtuple
from decimal import Decimal
from typing import Any, Dict, List, Optional, Union

import numpy as np

from ding_common import ConfigError

ASSISTANT = ('assistant', 'model', 'chatbot')  # names that chat templates have for the role that answers
NEW_DICT: Dict = {}  # a default that stands for a new dict, so that two problems never share theirs

Text = Union[str, List[Dict[str, str]]]  # plain, or chat messages with role and content


class Problem(namedtuple('Problem', 'prompt answer metadata')):
    """
    Overview:
        One problem of a task, in text.
    Shapes:
        - prompt (:obj:`Union[str, List[Dict[str, str]]]`): Text, or chat messages with ``role`` and ``content``
        - answer (:obj:`str`): The reference answer, for scorers that compare
        - metadata (:obj:`Dict[str, Any]`): Anything the scorer needs; evaluation groups results by ``kind``
    """
    __slots__ = ()

    def __new__(cls, prompt: Text, answer: str = '', metadata: Dict[str, Any] = NEW_DICT) -> 'Problem':
        return super().__new__(cls, prompt, answer, {} if metadata is NEW_DICT else metadata)

    @property
    def text(self) -> str:
        """The prompt as text for display; chat messages become lines of role and content."""
        if isinstance(self.prompt, str):
            return self.prompt
        return '\n'.join(f"{message['role']}: {message['content']}" for message in self.prompt)

    @property
    def messages(self) -> List[Dict[str, str]]:
        """The prompt as chat messages; text becomes a message of the user."""
        return [dict(role='user', content=self.prompt)] if isinstance(self.prompt, str) else list(self.prompt)

    def after(self, examples: List[Dict[str, str]]) -> 'Problem':
        """The problem with example messages before its prompt; without examples the same one."""
        return self._replace(prompt=[*examples, *self.messages]) if examples else self


def is_prompt(prompt: Any) -> bool:
    """Whether a value is text, or a non-empty list of chat messages with role and content."""
    return isinstance(prompt, str) or isinstance(prompt, list) and len(prompt) > 0 and all(
        isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ('role', 'content'))
        for message in prompt
    )


def messages_of(prompt: Any) -> str:
    """What messages must be, for an error about a prompt: how to write its content if that is a list of parts."""
    for i, message in enumerate(prompt if isinstance(prompt, list) else ()):
        if isinstance(message, dict) and isinstance(message.get('content'), list):
            return f'messages whose content is text: that of message {i} is a list of parts; join their texts'
    return 'messages with role and content'


def final_answer(prompt: Any) -> Optional[str]:
    """
    The content of the assistant's turn with which a prompt ends, None if it ends otherwise. A policy must not read it:
    a chat template would open a second turn of the assistant after it.
    """
    if is_prompt(prompt) and not isinstance(prompt, str) and prompt[-1]['role'].lower() in ASSISTANT:
        return prompt[-1]['content']
    return None


def check_unanswered(prompt: Any, where: str) -> None:
    """Raise a ``ConfigError``, which begins with ``where``, if a prompt ends with an answer."""
    answer = final_answer(prompt)
    if answer is not None:
        raise ConfigError(
            f"{where}: the messages end with the assistant's turn {answer!r:.80}, which the policy would read as part "
            'of its prompt. Remove this turn, or make it the answer.'
        )


def as_text(value: Any) -> str:
    """A value as text, with numbers as people write them: 42.0 and Decimal('42.00') are 42, and 1e-7 is 0.0000001."""
    if not isinstance(value, (float, np.floating, Decimal)):
        return str(value)
    number = Decimal(str(value))
    if not number.is_finite() or abs(number.adjusted()) > 20:
        return str(value)
    text = f'{number:f}'
    text = text.rstrip('0').rstrip('.') if '.' in text else text
    return '0' if text == '-0' else text


def is_missing(value: Any) -> bool:
    """Whether a value is NaN, or what stands for it in tables of dates or of nullable columns."""
    return not isinstance(value, str) and str(value).lower() in ('nan', 'snan', 'nat', '<na>')
