"""
Decide whether a completion gives the right answer: extract the answer from the text (``EXTRACTORS``), then compare it
with the reference (``CHECKS``). Both are strict. Several different answers count as none, and so does an answer inside
a longer text.
"""
import re
from decimal import Decimal
from typing import Callable, Dict, List, Optional, Sequence, Tuple, Union

from dizoo_llm.servers import MOST, Servers

_BLOCK = re.compile(r'<answer>((?:(?!</?answer>).)*)</answer>', re.DOTALL)
_WORD = re.compile(r'\\?[A-Za-z]{2,}')
_FUNCTIONS = {'sin', 'cos', 'tan', 'log', 'ln', 'exp', 'sqrt', 'pi'}
_SIGNS = 'π×÷·−√∞≤≥°²³½'
SERVERS = Servers(
    'math-verify', 'mathematics', "env.task.check = 'math_verify': needs the extra: pip install '.[math]' in the clone",
    MOST
)
_NUMBER = re.compile(r'(?!\$[-+]?\$)\$?([-+]?)\$?((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]+)?)%?\.?')


def _answer_tag(completion: str) -> Optional[str]:
    return _agreed(_BLOCK.findall(completion))


def _boxed(completion: str) -> Optional[str]:
    found, opened = [], []  # for each open brace: where its content starts, and whether it belongs to a \boxed
    for brace in re.finditer(r'\\boxed\{|[{}]', completion):
        if brace[0] != '}':
            opened.append((brace.end(), len(brace[0]) > 1))
        elif opened:
            begin, boxed = opened.pop()
            if boxed:
                found.append(completion[begin:brace.start()])
    return _agreed([text for text in found if '\\boxed{' not in text])  # of nested boxes the innermost


def _hashes(completion: str) -> Optional[str]:
    """The GSM8K format: the text after the only ####, to the end of its line."""
    parts = completion.split('####')
    return parts[1].split('\n')[0].strip() if len(parts) == 2 else None


def _agreed(found: List[str]) -> Optional[str]:
    found = [text.strip() for text in found]
    return found[0] if found and all(text == found[0] for text in found) else None


# Name in a config -> function that extracts the answer from a completion, or returns None.
EXTRACTORS: Dict[str, Callable[[str], Optional[str]]] = {
    'whole': str.strip,
    'answer_tag': _answer_tag,
    'boxed': _boxed,
    '####': _hashes,
}

# The same name -> format in which a demonstration writes an answer.
WRITTEN: Dict[str, str] = {
    'whole': '{}',
    'answer_tag': '<answer>{}</answer>',
    'boxed': '\\boxed{{{}}}',
    '####': '#### {}',
}


def exact(given: str, answer: str) -> float:
    """1 if both are the same non-empty text, apart from surrounding white space, else 0."""
    return float(given.strip() == answer.strip() != '')


def number(given: str, answer: str) -> float:
    """
    1 if both are the same number, else 0: digits, perhaps with well-formed thousands commas, a decimal point, a sign,
    and a dollar or percent sign, and no other text.
    """
    a, b = _number(given), _number(answer)
    return float(a is not None and a == b)


def math_verify(pairs: Sequence[Tuple[str, str]]) -> List[Union[float, Exception]]:
    """
    1 for each pair of answer and reference that ``math-verify`` (an extra) considers the same expression, else 0; an
    exception if it fails or takes too long, for example for a tower of powers. It finds an expression in any text, so
    the answer must be a single one: at most 1000 characters without words, control characters and white space other
    than spaces, and with an equality sign or brackets only if the reference has them.
    """
    pairs = [(given.strip(), answer.strip()) for given, answer in pairs]
    asked = [i for i, pair in enumerate(pairs) if _may_be_expression(*pair)]
    scores: List[Union[float, Exception]] = [0.0] * len(pairs)
    questions = [('same', answer, given) for given, answer in map(pairs.__getitem__, asked)]
    for i, same in zip(asked, SERVERS.ask(questions, [given for _, _, given in questions])):
        scores[i] = same if isinstance(same, Exception) else float(same)
    return scores


def _may_be_expression(given: str, answer: str) -> bool:
    words = {word for word in _WORD.findall(given) if not word.startswith('\\')}
    if len(given) > 1000 or words - _FUNCTIONS - set(_WORD.findall(answer)):
        return False
    if any((mark in given) != (mark in answer) for mark in '=[]?:;#\n"') or '$$' in given:
        return False
    return all((c.isascii() and c.isprintable()) or c in _SIGNS or c in answer for c in given)


# Name in a config -> function that compares extracted answers with their references.
CHECKS: Dict[str, Callable[[Sequence[Tuple[str, str]]], List[Union[float, Exception]]]] = {
    'exact': lambda pairs: [exact(*pair) for pair in pairs],
    'number': lambda pairs: [number(*pair) for pair in pairs],
    'math_verify': math_verify,
}


def _number(text: str) -> Optional[Decimal]:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or not match[2]:
        return None
    return Decimal(match[1] + match[2].replace(',', ''))
