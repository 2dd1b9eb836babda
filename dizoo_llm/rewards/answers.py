"""
Whether a completion gives the right answer. First the answer is taken out of the text (``EXTRACTORS``), then compared
(``CHECKS``). Both are strict: who writes several answers has given none, and an answer inside a longer text is not one.
"""
import re
from decimal import Decimal
from typing import Callable, Dict, List, Optional

from .mathematics import same_expression

_BLOCK = re.compile(r'<answer>((?:(?!</?answer>).)*)</answer>', re.DOTALL)
_WORD = re.compile(r'\\?[A-Za-z]{2,}')
_FUNCTIONS = {'sin', 'cos', 'tan', 'log', 'ln', 'exp', 'sqrt', 'pi'}
_SIGNS = 'π×÷·−√∞≤≥°²³½'
_NUMBER = re.compile(r'(?!\$[-+]?\$)\$?([-+]?)\$?((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]+)?)%?\.?')


def _whole(completion: str) -> Optional[str]:
    return completion.strip()


def _answer_tag(completion: str) -> Optional[str]:
    return _agreed(_BLOCK.findall(completion))


def _boxed(completion: str) -> Optional[str]:
    found, opened = [], []  # what follows each brace that is open, and whether it is a box's
    for brace in re.finditer(r'\\boxed\{|[{}]', completion):
        if brace[0] != '}':
            opened.append((brace.end(), len(brace[0]) > 1))
        elif opened:
            begin, boxed = opened.pop()
            if boxed:
                found.append(completion[begin:brace.start()])
    return _agreed([text for text in found if '\\boxed{' not in text])  # of boxes in boxes the innermost


def _hashes(completion: str) -> Optional[str]:
    """GSM8K's: behind the only ####, to the end of its line."""
    parts = completion.split('####')
    return parts[1].split('\n')[0].strip() if len(parts) == 2 else None


def _agreed(found: List[str]) -> Optional[str]:
    found = [text.strip() for text in found]
    return found[0] if found and all(text == found[0] for text in found) else None


# Name in a config -> where in a completion the answer stands; None if there is none.
EXTRACTORS: Dict[str, Callable[[str], Optional[str]]] = {
    'whole': _whole,
    'answer_tag': _answer_tag,
    'boxed': _boxed,
    '####': _hashes,
}

# The same name -> how a demonstration writes an answer.
WRITTEN: Dict[str, str] = {
    'whole': '{}',
    'answer_tag': '<answer>{}</answer>',
    'boxed': '\\boxed{{{}}}',
    '####': '#### {}',
}


def exact(given: str, answer: str) -> float:
    """
    Overview:
        1 if both are the same text, but for white space around it, else 0.
    """
    return float(given.strip() == answer.strip() != '')


def number(given: str, answer: str) -> float:
    """
    Overview:
        1 if both are the same number, else 0: in digits, with well-formed thousands commas, a point, a sign, a dollar \
        or percent sign; nothing else around it.
    """
    a, b = _number(given), _number(answer)
    return float(a is not None and a == b)


def math_verify(given: str, answer: str) -> float:
    """
    Overview:
        1 if ``math-verify`` (an extra of this package) holds both for the same mathematical expression, else 0. It \
        would find one in any text, so what is given must be nothing but one: one line of at most 1000 characters \
        without words, and with an equality sign or brackets only where the reference has them.
    Raises:
        - TimeoutError: If it cannot tell within some seconds, as of towers of powers.
    """
    given, answer = given.strip(), answer.strip()
    words = {word for word in _WORD.findall(given) if not word.startswith('\\')}
    if len(given) > 1000 or words - _FUNCTIONS - set(_WORD.findall(answer)):
        return 0.0
    if any((mark in given) != (mark in answer) for mark in '=[]?:;#\n"') or '$$' in given:
        return 0.0
    if any(not c.isascii() and c not in _SIGNS and c not in answer for c in given):
        return 0.0
    return float(same_expression(given, answer))


# Name in a config -> how an extracted answer is compared with the reference.
CHECKS: Dict[str, Callable[[str, str], float]] = {'exact': exact, 'number': number, 'math_verify': math_verify}


def _number(text: str) -> Optional[Decimal]:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or not match[2]:
        return None
    return Decimal(match[1] + match[2].replace(',', ''))
