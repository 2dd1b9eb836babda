"""
Whether a completion gives the right answer. First the answer is taken out of the text (``EXTRACTORS``), then compared
(``CHECKS``). Both are strict: who writes several answers has given none, and an answer inside a longer text is not one.
"""
import re
from decimal import Decimal
from typing import Callable, Dict, List, Optional

_BLOCK = re.compile(r'<answer>((?:(?!</?answer>).)*)</answer>', re.DOTALL)
_NUMBER = re.compile(r'\$?([-+]?)\$?((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]+)?)%?\.?')


def _whole(completion: str) -> Optional[str]:
    return completion.strip()


def _answer_tag(completion: str) -> Optional[str]:
    return _agreed(_BLOCK.findall(completion))


def _boxed(completion: str) -> Optional[str]:
    found = []
    for start in re.finditer(r'\\boxed\{', completion):
        depth, end = 1, start.end()
        while end < len(completion) and depth > 0:
            depth += {'{': 1, '}': -1}.get(completion[end], 0)
            end += 1
        if depth == 0:
            found.append(completion[start.end():end - 1])
    return _agreed(found)


def _hashes(completion: str) -> Optional[str]:
    """GSM8K's: behind the only ####, to the end of its line."""
    parts = completion.split('####')
    return parts[1].strip().split('\n')[0].strip() if len(parts) == 2 else None


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
        1 if ``math-verify`` (an extra of this package) holds both for the same mathematical expression, else 0.
    """
    from math_verify import parse, verify

    # without its own time limits, which set signals: the environment manager's step time-out is the limit
    gold, guess = (parse(f'${text}$', parsing_timeout=None) for text in (answer, given))
    return float(bool(gold) and bool(guess) and verify(gold, guess, timeout_seconds=None))


# Name in a config -> how an extracted answer is compared with the reference.
CHECKS: Dict[str, Callable[[str, str], float]] = {'exact': exact, 'number': number, 'math_verify': math_verify}


def _number(text: str) -> Optional[Decimal]:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or not match[2]:
        return None
    return Decimal(match[1] + match[2].replace(',', ''))
