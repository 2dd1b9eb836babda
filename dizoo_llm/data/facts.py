"""
What problems have in common that are one fact in other forms: 3 + 5, 5 + 3 and 8 - 5, or a question with other
punctuation. Training has no form of a fact that is held out.
"""
import re
from hashlib import blake2b
from typing import List

from dizoo_llm.base import Problem

_WORD = re.compile(r'\w+')
_SYMBOL = re.compile(r'\d+(?:\.\d+)?|\w+|[^\w\s.,;:!?\'"`]')  # with operators, without punctuation


def in_any_order(problem: Problem) -> bytes:
    """
    The same for problems whose prompts and reference answers together have the same words and numbers, however ordered:
    a sum, its commuted form and its inverse differences; a word and its reverse.
    """
    return digest(sorted(_WORD.findall(f'{problem.text} {problem.answer}'.casefold())))


def as_written(problem: Problem) -> bytes:
    """
    The same for problems with an equal entry ``fact`` of their metadata; without one, for problems whose prompts differ
    only in case, punctuation and white space.
    """
    fact = problem.metadata.get('fact')
    if fact is not None:
        return digest(['', str(fact)])
    return digest(_SYMBOL.findall(problem.text.casefold()) or problem.text.split())


def digest(words: List[str]) -> bytes:
    """Of words in this order. As texts, those of a large file would take as much memory again."""
    return blake2b(' '.join(words).encode('utf-8', 'surrogatepass'), digest_size=16).digest()
