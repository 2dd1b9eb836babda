"""``math-verify`` in processes that can be killed, see ``servers.py``."""
from typing import List, Sequence, Tuple, Union

from .servers import Servers

SERVERS = Servers(
    'math-verify', "env.task.check = 'math_verify': needs the extra: pip install 'ding-grpo[math]'", """
from math_verify import parse, verify

def answer(*texts):
    gold, guess = (parse(f'${text}$', parsing_timeout=None) for text in texts)
    return bool(gold) and bool(guess) and bool(verify(gold, guess, timeout_seconds=None))
"""
)


def same_expressions(pairs: Sequence[Tuple[str, str]]) -> List[Union[bool, Exception]]:
    """
    Overview:
        Whether ``math-verify`` considers both texts of each pair the same mathematical expression.
    Arguments:
        - pairs (:obj:`Sequence[Tuple[str, str]]`): The model's answers, and the references.
    Returns:
        - same (:obj:`List[Union[bool, Exception]]`): See ``Servers.ask``.
    Raises:
        - ImportError: If ``math-verify`` is not installed.
    """
    return SERVERS.ask([(answer, given) for given, answer in pairs], [given for given, _ in pairs])
